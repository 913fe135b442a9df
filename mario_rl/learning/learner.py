"""The learner: networks, optimizer, and the update. Runs in the main thread; with TRAINING_WORKERS, in theirs."""

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.learning.losses import LossFigures, MicroBatch, OutputFunction, double_q_loss
from mario_rl.learning.networks import Networks, with_prefix
from mario_rl.learning.rules import Execution, LearningRules
from mario_rl.learning.targets import TargetsAhead
from mario_rl.learning.transfer import Transfer
from mario_rl.replay.sampler import SampleBuffer
from mario_rl.saved_part import check_counts, check_like
from mario_rl.telemetry.metrics import Metrics, Rates

logger = logging.getLogger(__name__)


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
        self.networks = Networks(shape, device)
        # float16 gradients underflow without scaling; bfloat16 and float32 do not.
        self.scaler = torch.amp.GradScaler(device.type, enabled=execution.autocast_dtype is torch.float16)
        self.num_updates = 0
        self.num_bad_updates = self.num_bad_updates_in_a_row = 0  # left out because they were not numbers
        self.rate_factor = 1.0  # halved when training had to go back to a checkpoint
        self._num_accumulated = 0  # micro-batches since the last step
        self._is_finite = torch.ones((), dtype=torch.bool, device=device)  # of the update in hand
        self._loss_function = self._build_loss()
        self._has_begun = False
        self._transfer = Transfer(rules.batch_size, device, self.autocast_dtype)
        self._sums = torch.zeros(3, device=device)  # loss, TD error, Q
        self._gradient_norm_sum = torch.zeros((), device=device)
        self._num_micro_batches = 0
        self._num_summed_updates = 0
        self._figures: LearnerFigures | None = None
        self._rates = Rates()

    @cached_property
    def optimizer(self) -> torch.optim.Adam:
        """Adam. Made when first used: torch imports its compiler for it, 2 s in which collectors can start already."""
        return torch.optim.Adam(
            self.networks.online.parameters(), lr=self.rules.learning_rate, eps=self.rules.adam_epsilon, fused=True
        )

    def set_learning_rate(self, decisions: int) -> None:
        """As the schedule wants it after these decisions: from the first to the final rate, in equal ratios."""
        rules = self.rules
        share = min(1.0, decisions / rules.learning_rate_decay_decisions)
        rate = rules.learning_rate * (rules.final_learning_rate / rules.learning_rate) ** share
        for group in self.optimizer.param_groups:
            group["lr"] = rate * self.rate_factor

    def train_on(self, sample: SampleBuffer) -> None:
        """Train on one sample call, micro-batch by micro-batch; every few of them make a step."""
        self._transfer.load(sample)
        for part in range(sample.size // self.rules.batch_size):
            batch = self._transfer.micro_batch(part)
            figures = self._add_gradients(batch) if self._has_begun else self._begin_gradients(batch)
            self._transfer.note_errors(part, figures.td_errors)
            self._add_up(figures)
            self._num_accumulated += 1
            if self._num_accumulated == self.rules.gradient_accumulation_steps:
                self._step()
        self._transfer.release()  # from now on the sample may be refilled

    @torch.no_grad()
    def step_with(self, replica: QNetwork, figures: list[LossFigures]) -> None:
        """Make a step with the gradients of a worker's replica, and take its BatchNorm statistics (`worker_team.py`).

        Statistics are replaced, not added up: each replica's are an average of their own, and sums of several moves
        could overshoot, even into negative variances.
        """
        for mine, theirs in zip(self.networks.online.parameters(), replica.parameters(), strict=True):
            assert mine.grad is not None
            assert theirs.grad is not None
            mine.grad.copy_(theirs.grad)
        torch._foreach_copy_(list(self.networks.online.buffers()), list(replica.buffers()))
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
        self.scaler.scale(figures.loss / self.rules.gradient_accumulation_steps).backward()  # type: ignore[no-untyped-call]
        return figures

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """The precision of convolutions; None: float32 throughout."""
        return self._execution.autocast_dtype

    def autocast(self) -> torch.autocast:
        """The precision of a forward pass, here and in a worker."""
        dtype = self.autocast_dtype
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
        self._num_accumulated = 0
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.networks.online.parameters(), self.rules.max_gradient_norm)
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
        # Over a share of all updates so far: fast in the beginning, when the network changes most.
        self.networks.average(1.0 / (1.0 + self.rules.weight_averaging * self.num_updates))
        if self.rules.target_update == "soft":
            self.networks.follow_softly(self.rules.target_tau)
        elif self.num_updates % self.rules.target_update_interval == 0:
            self.networks.copy_to_target()

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

    def metrics(self) -> Metrics:
        """Means and rates since the last call. An epoch may end before the next round: then the last means stand."""
        updates = self._rates.since({"learner/updates_per_second": self.num_updates})
        samples = updates["learner/updates_per_second"] * self.rules.batch_size * self.rules.gradient_accumulation_steps
        metrics = updates | {"learner/samples_per_second": samples}
        self._figures = self.take_figures() or self._figures
        if self._figures is None:
            return metrics
        means = {f"learner/{name}": value for name, value in self._figures._asdict().items()}
        return metrics | means | {"learner/bad_updates": self.num_bad_updates}

    def targets_ahead(self) -> TargetsAhead:
        """What lets the sampling thread compute targets; on a CPU only."""
        return TargetsAhead(self.networks.online, self.networks.target, self.rules.batch_size, self.autocast_dtype)

    def tensors(self) -> dict[str, Tensor]:
        """Weights, Adam's moments, and torch's random numbers."""
        tensors = self.networks.tensors()
        for index, slots in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in slots.items()}
        return tensors | {"torch_rng": torch.get_rng_state()}

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint keeps as JSON."""
        return {
            "num_updates": self.num_updates,
            "rate_factor": self.rate_factor,
            "scaler": self.scaler.state_dict(),
        }

    def check(self, state: Any, tensors: dict[str, Tensor]) -> None:
        """Counts, and all of Adam's state or nothing of it: the fused step reads memory by the parameters' sizes."""
        check_like(state, self.state(), "learner")
        check_counts(state, "learner")
        if not 0 < state.get("rate_factor", 1.0) <= 1:
            raise ValueError(f"learner.rate_factor is {state['rate_factor']}")
        saved = {name: (moment.shape, moment.dtype) for name, moment in with_prefix(tensors, "optimizer.").items()}
        expected = {
            f"{index}.{slot}": (torch.Size() if slot == "step" else parameter.shape, torch.float32)
            for index, parameter in enumerate(self.networks.online.parameters())
            for slot in ("step", "exp_avg", "exp_avg_sq")
        }
        if saved and saved != expected:
            raise ValueError("the optimizer's state is of another network")

    def load(self, state: Any, tensors: dict[str, Tensor]) -> list[str]:
        """Continue from a checkpoint, torch's random numbers included; the learning rate is today's setting."""
        self.networks.load(tensors)
        parameters = list(self.networks.online.parameters())
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in with_prefix(tensors, "optimizer.").items():
            index, _, slot = name.partition(".")
            parameter = parameters[int(index)]
            # The fused Adam walks parameter and moments through memory side by side, so both must have the same layout;
            # files know only one.
            same_layout = torch.empty_like(parameter).copy_(tensor) if tensor.shape == parameter.shape else tensor
            moments.setdefault(int(index), {})[slot] = same_layout
        self.optimizer.load_state_dict({"state": moments, "param_groups": self.optimizer.state_dict()["param_groups"]})
        if self.scaler.is_enabled() and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(tensors["torch_rng"])
        self.num_updates = state["num_updates"]
        self.rate_factor = float(state.get("rate_factor", 1.0))
        self.num_bad_updates_in_a_row = 0
        return []

    def _build_loss(self) -> Callable[[MicroBatch], LossFigures]:
        num_gpus = self._execution.num_gpus
        networks = self.networks
        online, online_eval, target = (
            _spread(_Outputs(network), num_gpus) for network in (networks.online, networks.online_eval, networks.target)
        )

        def loss(batch: MicroBatch) -> LossFigures:
            return double_q_loss(online, online_eval, target, networks.online.head, batch)

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
