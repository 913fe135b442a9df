"""The goal and the loss of Q-learning, as pure functions of networks and tensors."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mario_rl.value_bins import ValueBins

QFunction = Callable[[Tensor], Tensor]  # scaled pictures [B, 4, 84, 84] -> Q-values [B, actions]
LogitFunction = Callable[[Tensor], Tensor]  # scaled pictures -> their histograms [B, actions, bins]


class MicroBatch(NamedTuple):
    """What one forward and backward works on: with its goals, or with what they are computed from."""

    states: Tensor  # [B, 4, 84, 84] float, channels last
    actions: Tensor  # [B] int64
    goals: Tensor | None  # [B] where the sampling thread has computed them
    next_states: Tensor | None  # [B, 4, 84, 84] the state n steps on, where it has not
    returns: Tensor  # [B] discounted sum of the rewards in between
    discounts: Tensor  # [B] gamma ** steps, or 0 where the episode terminated


class LossFigures(NamedTuple):
    """The loss and what is logged with it."""

    loss: Tensor  # [] cross-entropy
    td_error: Tensor  # [] mean absolute
    q_value: Tensor  # [] mean of the actions taken


@torch.no_grad()
def double_q_goals(
    online: QFunction, target: QFunction, next_states: Tensor, returns: Tensor, discounts: Tensor
) -> Tensor:
    """n-step Double Q-learning: the online network picks the next action, the target network values it.

    Both run in eval mode: in train mode, the next states would enter BatchNorm's running statistics, which collectors
    act with.
    """
    best_actions = online(next_states).argmax(dim=1, keepdim=True)
    next_values = target(next_states).gather(1, best_actions).squeeze(1)
    return returns + discounts * next_values.float()


def double_q_loss(
    online: LogitFunction, online_eval: QFunction, target: QFunction, bins: ValueBins, batch: MicroBatch
) -> LossFigures:
    """How far the histograms of the actions taken are from their goals.

    `online` runs in train mode and normalises with this batch; `online_eval` is the same network in eval mode.
    """
    goals = batch.goals
    if goals is None:
        assert batch.next_states is not None
        goals = double_q_goals(online_eval, target, batch.next_states, batch.returns, batch.discounts)
    taken = online(batch.states)[torch.arange(len(goals), device=goals.device), batch.actions].float()  # [B, bins]
    loss = functional.cross_entropy(taken, bins.histogram(goals))
    values = bins.mean(taken.detach())
    return LossFigures(loss, (goals - values).abs().mean(), values.mean())
