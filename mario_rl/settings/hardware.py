"""What this machine has, and what follows from it: device, threads, precision, compilation, memory.

Nothing is assumed that can be looked up or measured in a moment; every choice comes with the reason that the plan
prints.
"""

import time
from dataclasses import dataclass
from typing import NamedTuple

import psutil
import torch
from torch.nn import functional

from mario_rl.channels.experience_ring import RingShape
from mario_rl.errors import UserError
from mario_rl.learning.rules import Execution
from mario_rl.machine.facts import cpu_has_bfloat16, cpu_name, has_compiler, has_gpu, num_cores
from mario_rl.machine.process_tuning import flush_denormals, keep_freed_memory
from mario_rl.replay.streams import BYTES_PER_STORED_ROW
from mario_rl.settings.hardware_rules import HardwareRules
from mario_rl.settings.settings import Settings

MIN_TRITON_CAPABILITY = (7, 0)


class HardwareError(UserError):
    """The settings ask for what this machine does not have; the message is for the user."""


class Choice(NamedTuple):
    """A decision and its reason."""

    value: str
    reason: str


@dataclass(frozen=True)
class HardwarePlan:
    """How this run uses the machine."""

    device: torch.device
    device_name: str
    num_gpus: int  # GPUs a micro-batch is split over; 0 on a CPU
    learner_threads: int
    workers: int  # that train side by side
    targets_ahead: bool  # half of the learner's threads compute targets while the other half trains
    autocast_dtype: torch.dtype | None  # None: everything in float32
    precision: Choice
    compile_mode: str | None  # None: not compiled
    compilation: Choice
    replay_bytes: int
    ring_bytes: int

    @property
    def threads_each(self) -> int:
        """CPU threads of one that trains: a worker, or the half that does not compute targets."""
        return max(1, self.learner_threads // (2 if self.targets_ahead else self.workers))

    @property
    def execution(self) -> Execution:
        """For the learner."""
        return Execution(self.device, self.autocast_dtype, self.compile_mode, self.num_gpus)


def make_plan(settings: Settings, *, serial: bool) -> HardwarePlan:
    """Decide everything that depends on the machine. HardwareError when memory or device are not there."""
    rules, collecting = settings.hardware, settings.collecting
    on_gpu = rules.device == "cuda" or (rules.device == "auto" and has_gpu())
    if on_gpu and not has_gpu():
        raise HardwareError("DEVICE = 'cuda', but torch sees no CUDA device: set DEVICE to 'auto' or 'cpu'.")
    device = torch.device("cuda" if on_gpu else "cpu")
    num_gpus = (torch.cuda.device_count() if rules.use_data_parallel else 1) if on_gpu else 0
    # With nes-py a collector fills a core, and OpenMP barriers of an oversubscribed learner cost more than the threads
    # bring. With the fast emulator collectors mostly wait for the replay ratio, and leave the learner all cores. Two
    # threads it has in any case: one trains and one computes targets, so that neither waits for the other at a barrier.
    filled_cores = collecting.num_processes if settings.play.emulator == "nes_py" and not serial else 0
    free_cores = num_cores() - filled_cores
    learner_threads = rules.learner_threads or max(min(2, num_cores()), free_cores)
    workers = 1 if serial else rules.training_workers
    if workers > 1 and on_gpu:
        raise HardwareError(
            f"TRAINING_WORKERS = {workers} is for CPUs; a GPU works through one queue, and is filled by a larger "
            "BATCH_SIZE: set TRAINING_WORKERS to 1."
        )
    dtype, precision = _choose_precision(rules, device)
    mode, compilation = _choose_compilation(rules, device, num_gpus, workers)
    num_slots, num_rings = (1, 1) if serial else (collecting.ring_slots, collecting.num_processes)
    ring = RingShape(num_slots, collecting.envs_per_process, collecting.chunk_decisions)
    plan = HardwarePlan(
        device=device,
        device_name=torch.cuda.get_device_name(device) if on_gpu else cpu_name(),
        num_gpus=num_gpus,
        learner_threads=learner_threads,
        workers=workers,
        targets_ahead=not on_gpu and not serial and learner_threads > 1 and workers == 1,
        autocast_dtype=dtype,
        precision=precision,
        compile_mode=mode,
        compilation=compilation,
        replay_bytes=settings.replay.buffer_size * BYTES_PER_STORED_ROW,
        ring_bytes=ring.num_bytes * num_rings,
    )
    _check_memory(plan)
    return plan


def _choose_precision(rules: HardwareRules, device: torch.device) -> tuple[torch.dtype | None, Choice]:
    if not rules.use_amp:
        return None, Choice("float32", "USE_AMP is off")
    if device.type == "cuda":
        return torch.float16, Choice("float16", "autocast and GradScaler on the GPU")
    if not cpu_has_bfloat16():
        return None, Choice("float32", "this CPU has no bfloat16 arithmetic; emulating it is several times slower")
    speed_up = _measure_bfloat16()
    if speed_up > 1.1:
        return torch.bfloat16, Choice("bfloat16", f"measured {speed_up:.1f}x as fast as float32 here")
    return None, Choice("float32", f"bfloat16 measured only {speed_up:.1f}x as fast here")


def _measure_bfloat16() -> float:
    """How many times as fast a convolution's forward and backward is in bfloat16; interleaved, best of many.

    On one thread: several would wait for each other on a busy machine, and measure that instead.
    """
    previous_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pictures = torch.rand(64, 16, 20, 20).to(memory_format=torch.channels_last)
    weight = torch.rand(32, 16, 4, 4, requires_grad=True)
    seconds = {True: float("inf"), False: float("inf")}
    for _ in range(40):  # a fifth of a second
        for enabled in seconds:
            begun = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                result = functional.conv2d(pictures, weight, stride=2)
            result.float().sum().backward()  # type: ignore[no-untyped-call]
            seconds[enabled] = min(seconds[enabled], time.perf_counter() - begun)
    torch.set_num_threads(previous_threads)
    return seconds[False] / seconds[True]


def _choose_compilation(
    rules: HardwareRules, device: torch.device, num_gpus: int, workers: int
) -> tuple[str | None, Choice]:
    if rules.compile == "off":
        return None, Choice("off", "COMPILE is off")
    if workers > 1:
        return None, Choice("off", "each of TRAINING_WORKERS has networks of its own")
    if num_gpus > 1:
        return None, Choice(
            "off", "USE_DATA_PARALLEL copies the network to each GPU, which compiled graphs do not survive"
        )
    if device.type == "cpu" and rules.compile == "auto":
        return None, Choice(
            "off", "channels_last gains most of it on a CPU; compiling would delay the start by 10-40 s"
        )
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < MIN_TRITON_CAPABILITY:
        return None, Choice("off", "this GPU is older than torch.compile supports")
    if not has_compiler():
        return None, Choice("off", "no C++ compiler was found; install g++ to use it")
    if device.type == "cuda":
        return "reduce-overhead", Choice("on", "CUDA graphs: torch.compile(mode='reduce-overhead')")
    return "default", Choice("on", "COMPILE is on")


def _check_memory(plan: HardwarePlan) -> None:
    needed = plan.replay_bytes + plan.ring_bytes
    available = psutil.virtual_memory().available
    if needed > 0.9 * available:
        raise HardwareError(
            f"Replay and rings need {megabytes(needed)} but only {megabytes(available)} of memory are free: "
            f"lower BUFFER_SIZE ({megabytes(plan.replay_bytes)}) or REP_Q_SIZE ({megabytes(plan.ring_bytes)})."
        )


def megabytes(num_bytes: float) -> str:
    """For people: 353 MB."""
    return f"{num_bytes / 1e6:,.0f} MB"


def prepare(plan: HardwarePlan) -> None:
    """Set what holds for the whole process."""
    keep_freed_memory()
    flush_denormals(True)
    if plan.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32, which torch.compile asks for on Ampere and newer
