"""The target and the loss of Q-learning, as pure functions of networks and tensors."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mario_rl.agent.network import ValueHead

OutputFunction = Callable[[Tensor], Tensor]  # scaled pictures [B, 4, 84, 84] -> outputs [B, actions, n]


class MicroBatch(NamedTuple):
    """What one forward and backward works on: with its targets, or with what they are computed from."""

    states: Tensor  # [B, 4, 84, 84] float, channels last
    actions: Tensor  # [B] int64
    targets: Tensor | None  # [B, ...] where the sampling thread has computed them
    next_states: Tensor | None  # [B, 4, 84, 84] the state n steps on, where it has not
    returns: Tensor  # [B] discounted sum of the rewards in between
    discounts: Tensor  # [B] gamma ** steps, or 0 where the episode terminated
    weights: Tensor | None = None  # [B] how much each counts, where they were not drawn evenly


class LossFigures(NamedTuple):
    """The loss and what is logged with it."""

    loss: Tensor  # []
    td_errors: Tensor  # [B] absolute
    q_value: Tensor  # [] mean of the actions taken


@torch.no_grad()
def double_q_targets(
    online: OutputFunction,
    target: OutputFunction,
    head: ValueHead,
    next_states: Tensor,
    returns: Tensor,
    discounts: Tensor,
) -> Tensor:
    """n-step Double Q-learning: the online network picks the next action, the target network values it.

    Both run in eval mode: in train mode, the next states would enter BatchNorm's running statistics, which collectors
    act with.
    """
    best_actions = head.mean(online(next_states)).argmax(dim=1)
    next_outputs = _of_actions(target(next_states), best_actions).float()
    return head.targets(next_outputs, returns, discounts)


def double_q_loss(
    online: OutputFunction, online_eval: OutputFunction, target: OutputFunction, head: ValueHead, batch: MicroBatch
) -> LossFigures:
    """How far the outputs for the actions taken are from their targets.

    `online` runs in train mode and normalises with this batch; `online_eval` is the same network in eval mode.
    """
    targets = batch.targets
    if targets is None:
        assert batch.next_states is not None
        targets = double_q_targets(online_eval, target, head, batch.next_states, batch.returns, batch.discounts)
    taken = _of_actions(online(batch.states), batch.actions).float()  # [B, n]
    losses = head.losses(taken, targets)
    loss = losses.mean() if batch.weights is None else (batch.weights * losses).mean()
    values = head.mean(taken.detach())
    return LossFigures(loss, (head.target_values(targets) - values).abs(), values.mean())


def _of_actions(outputs: Tensor, actions: Tensor) -> Tensor:  # [B, actions, n], [B] -> [B, n]
    return outputs[torch.arange(len(actions), device=actions.device), actions]
