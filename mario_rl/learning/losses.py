"""Losses, as pure functions of networks and a micro-batch."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

QFunction = Callable[[Tensor], Tensor]  # scaled pictures [B, 4, 84, 84] -> Q-values [B, actions]


class MicroBatch(NamedTuple):
    """What one forward and backward works on."""

    states: Tensor  # [B, 4, 84, 84] float, channels last
    next_states: Tensor  # [B, 4, 84, 84] the state n steps on
    actions: Tensor  # [B] int64
    returns: Tensor  # [B] discounted sum of the rewards in between
    discounts: Tensor  # [B] gamma ** steps, or 0 where the episode terminated


class LossFigures(NamedTuple):
    """The loss and what is logged with it."""

    loss: Tensor  # [] Huber
    td_error: Tensor  # [] mean absolute
    q_value: Tensor  # [] mean of the actions taken


def double_q_loss(online: QFunction, online_eval: QFunction, target: QFunction, batch: MicroBatch) -> LossFigures:
    """n-step Double Q-learning: the online network picks the next action, the target network values it.

    `online` runs in train mode and normalises with this batch. `online_eval` is the same network in eval mode: in
    train mode, the next states would enter BatchNorm's running statistics, which collectors act with.
    """
    taken: Tensor = online(batch.states).gather(1, batch.actions[:, None]).squeeze(1)
    with torch.no_grad():
        best_actions = online_eval(batch.next_states).argmax(dim=1, keepdim=True)
        next_values = target(batch.next_states).gather(1, best_actions).squeeze(1)
        goals = batch.returns + batch.discounts * next_values.float()
    taken = taken.float()
    td_error = (goals - taken.detach()).abs().mean()
    return LossFigures(functional.smooth_l1_loss(taken, goals), td_error, taken.detach().mean())
