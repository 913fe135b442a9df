"""The learner: networks, optimizer, and the update. Runs in the main thread; with TRAINING_WORKERS, in theirs."""

import copy
import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from mario_rl.agent.network import NetworkShape, QNetwork, copy_weights, eval_twin
from mario_rl.learning.losses import LossFigures, MicroBatch, OutputFunction, double_q_loss
from mario_rl.learning.targets import GoalsAhead
from mario_rl.learning.transfer import Transfer
from mario_rl.replay.sampler import SampleBuffer

logger = logging.getLogger(__name__)


class LearningRules(NamedTuple):
    """How to learn; hardware is not among it."""

    batch_size: int
    accumulation_steps: int  # micro-batches an optimizer step
    steps_per_sample: int  # micro-batches a sample call
    learning_rate: float
    final_learning_rate: float
    learning_rate_decay_decisions: int
    adam_epsilon: float
    max_gradient_norm: float
    target_update: Literal["hard", "soft"]
    target_update_interval: int  # updates, for "hard"
    target_tau: float  # for "soft"
    weight_averaging: float  # the share of all updates so far that the average looks back over
    prioritized: bool = False  # samples carry weights, and get their errors back

    @property
    def micro_batches_per_round(self) -> int:
        """One call of `Learner.train`: whole sample calls and whole updates."""
        return max(self.accumulation_steps, self.steps_per_sample)


class Execution(NamedTuple):
    """Where and how the arithmetic runs."""

    device: torch.device
    autocast_dtype: torch.dtype | None = None
    compile_mode: str | None = None
    num_gpus: int = 0


class LearnerFigures(NamedTuple):
    """Means since the last time they were taken."""

    loss: float
    td_error: float
    q_value: float
    gradient_norm: float


class Learner:
    """Trains the online network and keeps the target network behind it."""

    def __init__(self, shape: NetworkShape, rules: LearningRules, execution: Execution) -> None:
        self.rules = rules
        self._execution = execution
        self.device = device = execution.device
        self.online = QNetwork(shape).to(device).train()
        self.target = copy.deepcopy(self.online).eval().requires_grad_(False)
        # What acts and is exported: the average of the online network over its last updates. From one update to the
        # next, actions whose values are close change places all the time, and now and then that is fatal.
        self.averaged = copy.deepcopy(self.target)
        self._averages = _float_tensors(self.averaged), _float_tensors(self.online)
        self._online_eval = eval_twin(self.online)
        # Gradients have memory of their own from the start. Otherwise the first backward of a CUDA graph lends them its
        # own, which the next micro-batch overwrites.
        for parameter in self.online.parameters():
            parameter.grad = torch.zeros_like(parameter)
        # float16 gradients underflow without scaling; bfloat16 and float32 do not.
        self.scaler = torch.amp.GradScaler(device.type, enabled=execution.autocast_dtype is torch.float16)
        self.num_updates = 0
        self.num_bad_updates = self.num_bad_updates_in_a_row = 0  # left out because they were not numbers
        self.rate_factor = 1.0  # halved when training had to go back to a checkpoint
        self._is_finite = torch.ones((), dtype=torch.bool, device=device)  # of the update in hand
        self._loss_function = self._build_loss()
        self._has_begun = False
        sample_size = rules.batch_size * rules.steps_per_sample
        self._transfer = Transfer(sample_size, rules.batch_size, device, rules.prioritized)
        self._sums = torch.zeros(3, device=device)  # loss, TD error, Q
        self._gradient_norm_sum = torch.zeros((), device=device)
        self._num_micro_batches = 0
        self._num_summed_updates = 0

    @cached_property
    def optimizer(self) -> torch.optim.Adam:
        """Adam. Made when first used: torch imports its compiler for it, 2 s in which collectors can start already."""
        return torch.optim.Adam(
            self.online.parameters(), lr=self.rules.learning_rate, eps=self.rules.adam_epsilon, fused=True
        )

    def set_learning_rate(self, decisions: int) -> None:
        """As the schedule wants it after so many decisions: from the first to the final rate, in equal ratios."""
        rules = self.rules
        share = min(1.0, decisions / rules.learning_rate_decay_decisions)
        rate = rules.learning_rate * (rules.final_learning_rate / rules.learning_rate) ** share
        for group in self.optimizer.param_groups:
            group["lr"] = rate * self.rate_factor

    def train(self, next_sample: Callable[[], SampleBuffer]) -> int:
        """One round: draw, accumulate, step. The number of experiences trained on."""
        rules = self.rules
        for micro_batch_number in range(rules.micro_batches_per_round):
            part = micro_batch_number % rules.steps_per_sample
            if part == 0:
                self._transfer.load(next_sample)
            batch = self._transfer.micro_batch(part)
            figures = self._add_gradients(batch) if self._has_begun else self._begin_gradients(batch)
            self._transfer.note_errors(part, figures.td_errors)
            self._add_up(figures)
            if (micro_batch_number + 1) % rules.accumulation_steps == 0:
                self._step()
        return rules.micro_batches_per_round * rules.batch_size

    @torch.no_grad()
    def step_with(self, replica: QNetwork, figures: list[LossFigures]) -> None:
        """Make a step with the gradients of a worker's replica, and take its BatchNorm statistics (workers.py).

        Statistics are replaced, not added up: each replica's are an average of their own, and sums of several moves
        could overshoot, even into negative variances.
        """
        for mine, theirs in zip(self.online.parameters(), replica.parameters(), strict=True):
            assert mine.grad is not None
            assert theirs.grad is not None
            mine.grad.copy_(theirs.grad)
        torch._foreach_copy_(list(self.online.buffers()), list(replica.buffers()))
        for figure in figures:
            self._add_up(figure)
        self._step()

    def _add_up(self, figures: LossFigures) -> None:
        row = torch.stack((figures.loss.detach(), figures.td_errors.mean(), figures.q_value))
        is_finite = torch.isfinite(row).all()
        self._is_finite &= is_finite
        self._sums += torch.where(is_finite, row, 0.0)
        self._num_micro_batches += 1

    def _add_gradients(self, batch: MicroBatch) -> LossFigures:
        """Forward and backward of one micro-batch."""
        if self._execution.compile_mode is not None:
            # With CUDA graphs an output lives only until the next step begins; by then ours are used or copied.
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with self.autocast():
            figures = self._loss_function(batch)
        self.scaler.scale(figures.loss / self.rules.accumulation_steps).backward()  # type: ignore[no-untyped-call]
        return figures

    def autocast(self) -> torch.autocast:
        """In which a forward pass runs, whoever makes it."""
        dtype = self._execution.autocast_dtype
        return torch.autocast(self.device.type, dtype, enabled=dtype is not None)

    def _begin_gradients(self, batch: MicroBatch) -> LossFigures:
        """The very first micro-batch: forward and backward are compiled here, or given up for good."""
        self._has_begun = True
        try:
            return self._add_gradients(batch)
        except Exception as error:  # torch wraps a missing compiler, header or driver in many types
            if self._execution.compile_mode is None:
                raise
            reason = str(error).strip().splitlines()
            reason_line = reason[0] if reason else type(error).__name__
            logger.warning("torch.compile failed (%s); going on without it.", reason_line)
            self._execution = self._execution._replace(compile_mode=None)
            self._loss_function = self._build_loss()
            self.optimizer.zero_grad(set_to_none=False)
            return self._add_gradients(batch)

    def _step(self) -> None:
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.online.parameters(), self.rules.max_gradient_norm)
        # float16 gradients overflow now and then, and GradScaler leaves those steps out by itself; a loss never should.
        # Asking waits for the device, once an update.
        is_good = bool(self._is_finite if self.scaler.is_enabled() else self._is_finite & torch.isfinite(norm))
        self._is_finite.fill_(True)
        if is_good:
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=False)  # the gradients' memory stays where it is
        if not is_good:
            self.num_bad_updates += 1
            self.num_bad_updates_in_a_row += 1
            return
        self.num_bad_updates_in_a_row = 0
        self.num_updates += 1
        self._gradient_norm_sum += torch.nan_to_num(norm, 0.0, 0.0)  # GradScaler skips an overflow now and then
        self._num_summed_updates += 1
        self._average()
        if self.rules.target_update == "soft":
            self._follow_softly()
        elif self.num_updates % self.rules.target_update_interval == 0:
            self.copy_to_target()

    @torch.no_grad()
    def _average(self) -> None:
        """Move the average towards the online network; fast in the beginning, when the network changes most."""
        mine, theirs = self._averages
        torch._foreach_lerp_(mine, theirs, 1.0 / (1.0 + self.rules.weight_averaging * self.num_updates))

    def copy_to_target(self) -> None:
        """Make the target equal to the online network, BatchNorm's statistics included."""
        copy_weights(self.online, self.target)

    @torch.no_grad()
    def _follow_softly(self) -> None:
        target: list[Tensor] = list(self.target.parameters())
        online: list[Tensor] = [parameter.detach() for parameter in self.online.parameters()]
        torch._foreach_lerp_(target, online, self.rules.target_tau)
        # Running statistics are averages already: they are copied, not averaged again.
        for mine, theirs in zip(self.target.buffers(), self.online.buffers(), strict=True):
            mine.copy_(theirs)

    def take_figures(self) -> LearnerFigures | None:
        """Means since the last call. None when nothing was trained."""
        if not self._num_micro_batches:
            return None
        loss, td_error, q_value = (self._sums / self._num_micro_batches).tolist()
        norm = float(self._gradient_norm_sum) / max(1, self._num_summed_updates)
        figures = LearnerFigures(loss, td_error, q_value, norm)
        self._sums.zero_()
        self._gradient_norm_sum.zero_()
        self._num_micro_batches = self._num_summed_updates = 0
        return figures

    def goals_ahead(self) -> GoalsAhead:
        """What lets the sampling thread compute goals; on a CPU only."""
        return GoalsAhead(self.online, self.target, self.rules.batch_size, self._execution.autocast_dtype)

    def is_finite(self) -> bool:
        """Whether all weights and statistics are numbers that one can go on from."""
        networks = (self.online, self.target, self.averaged)
        return all(bool(tensor.isfinite().all()) for network in networks for tensor in network.state_dict().values())

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint keeps as tensors. The modules are never wrapped: keys carry no prefix of torch's."""
        tensors = {f"online.{name}": tensor for name, tensor in self.online.state_dict().items()}
        tensors |= {f"target.{name}": tensor for name, tensor in self.target.state_dict().items()}
        tensors |= {f"averaged.{name}": tensor for name, tensor in self.averaged.state_dict().items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in slots.items()}
        return tensors

    def numbers(self) -> dict[str, Any]:
        """Everything a checkpoint keeps as JSON."""
        return {
            "num_updates": self.num_updates,
            "rate_factor": self.rate_factor,
            "scaler": self.scaler.state_dict(),
        }

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Continue from a checkpoint. The learning rate is today's setting, not the saved one."""
        self.online.load_state_dict(_with_prefix(tensors, "online."))
        self.target.load_state_dict(_with_prefix(tensors, "target."))
        self.averaged.load_state_dict(_with_prefix(tensors, "averaged."))
        parameters = list(self.online.parameters())
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _with_prefix(tensors, "optimizer.").items():
            index, _, slot = name.partition(".")
            parameter = parameters[int(index)]
            # The fused Adam walks parameter and moments through memory side by side, so both must have the same layout;
            # files know only one.
            same_layout = torch.empty_like(parameter).copy_(tensor) if tensor.shape == parameter.shape else tensor
            state.setdefault(int(index), {})[slot] = same_layout
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})
        if self.scaler.is_enabled() and numbers["scaler"]:
            self.scaler.load_state_dict(numbers["scaler"])
        self.num_updates = numbers["num_updates"]
        self.rate_factor = float(numbers.get("rate_factor", 1.0))
        self.num_bad_updates_in_a_row = 0

    def load_policy(self, state: dict[str, Tensor]) -> None:
        """Start from exported weights: all three networks, with a fresh optimizer."""
        self.online.load_state_dict(state)
        self.averaged.load_state_dict(state)
        self.copy_to_target()

    def _build_loss(self) -> Callable[[MicroBatch], LossFigures]:
        num_gpus = self._execution.num_gpus
        networks = (self.online, self._online_eval, self.target)
        online, online_eval, target = (_spread(_Outputs(network), num_gpus) for network in networks)

        def loss(batch: MicroBatch) -> LossFigures:
            return double_q_loss(online, online_eval, target, self.online.head, batch)

        # Only the function is compiled: the modules, and so their state_dict, stay as they are.
        mode = self._execution.compile_mode
        return loss if mode is None else torch.compile(loss, mode=mode, dynamic=False)


class _Outputs(nn.Module):
    """A network as its distributions: nn.DataParallel knows only `forward`."""

    def __init__(self, network: QNetwork) -> None:
        super().__init__()
        self._network = network

    def forward(self, pictures: Tensor) -> Tensor:
        return self._network.outputs(pictures)


def _spread(network: nn.Module, num_gpus: int) -> OutputFunction:
    """The network over all GPUs where there are several; BatchNorm then normalises each GPU's share."""
    return nn.DataParallel(network) if num_gpus > 1 else network


def _float_tensors(network: nn.Module) -> list[Tensor]:
    """Weights and running statistics, as they lie in memory; not BatchNorm's count of batches, which nothing uses."""
    return [tensor for tensor in network.state_dict().values() if tensor.is_floating_point()]


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
