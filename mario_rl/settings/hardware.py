"""What this machine has, and what follows from it: device, threads, precision, compilation, memory.

Nothing is assumed that can be looked up or measured in a moment; every choice comes with the reason that the plan
prints.
"""

import ctypes
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import psutil
import torch
from torch.nn import functional

from mario_rl.channels.experience_ring import RingShape
from mario_rl.errors import UserError
from mario_rl.replay.streams import BYTES_PER_STORED_ROW
from mario_rl.settings.schema import Settings

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
    goals_ahead: bool  # half of the learner's threads compute goals while the other half trains
    autocast_dtype: torch.dtype | None  # None: everything in float32
    precision: Choice
    compile_mode: str | None  # None: not compiled
    compilation: Choice
    replay_bytes: int
    ring_bytes: int

    @property
    def threads_each(self) -> int:
        """CPU threads of whoever trains: a worker, or the half that does not compute goals."""
        return max(1, self.learner_threads // (2 if self.goals_ahead else self.workers))


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def has_gpu() -> bool:
    """Whether torch sees a CUDA device."""
    return torch.cuda.is_available()


def make_plan(settings: Settings, *, serial: bool) -> HardwarePlan:
    """Decide everything that depends on the machine. HardwareError when memory or device are not there."""
    on_gpu = settings.device == "cuda" or (settings.device == "auto" and has_gpu())
    if on_gpu and not has_gpu():
        raise HardwareError("DEVICE = 'cuda', but torch sees no CUDA device: set DEVICE to 'auto' or 'cpu'.")
    device = torch.device("cuda" if on_gpu else "cpu")
    num_gpus = (torch.cuda.device_count() if settings.use_data_parallel else 1) if on_gpu else 0
    # With nes-py a collector fills a core, and OpenMP barriers of an oversubscribed learner cost more than the threads
    # bring. With the fast emulator collectors mostly wait for the replay ratio, and leave the learner all cores. Two
    # threads it has in any case: one trains and one computes goals, so that neither waits for the other at a barrier.
    filled_cores = settings.num_processes if settings.emulator == "nes_py" and not serial else 0
    free_cores = num_cores() - filled_cores
    learner_threads = settings.learner_threads or max(min(2, num_cores()), free_cores)
    workers = 1 if serial else settings.training_workers
    if workers > 1 and on_gpu:
        raise HardwareError(
            f"TRAINING_WORKERS = {workers} is for CPUs; a GPU works through one queue, and is filled by a larger "
            "BATCH_SIZE: set TRAINING_WORKERS to 1."
        )
    dtype, precision = _choose_precision(settings, device)
    mode, compilation = _choose_compilation(settings, device, num_gpus, workers)
    num_slots, num_rings = (1, 1) if serial else (settings.ring_slots, settings.num_processes)
    ring = RingShape(num_slots, settings.envs_per_process, settings.chunk_decisions)
    plan = HardwarePlan(
        device=device,
        device_name=torch.cuda.get_device_name(device) if on_gpu else _cpu_name(),
        num_gpus=num_gpus,
        learner_threads=learner_threads,
        workers=workers,
        goals_ahead=not on_gpu and not serial and learner_threads > 1 and workers == 1,
        autocast_dtype=dtype,
        precision=precision,
        compile_mode=mode,
        compilation=compilation,
        replay_bytes=settings.buffer_size * BYTES_PER_STORED_ROW,
        ring_bytes=ring.num_bytes * num_rings,
    )
    _check_memory(plan)
    return plan


def _choose_precision(settings: Settings, device: torch.device) -> tuple[torch.dtype | None, Choice]:
    if not settings.use_amp:
        return None, Choice("float32", "USE_AMP is off")
    if device.type == "cuda":
        return torch.float16, Choice("float16", "autocast and GradScaler on the GPU")
    if not _cpu_has_bfloat16():
        return None, Choice("float32", "this CPU has no bfloat16 arithmetic; emulating it is several times slower")
    speed_up = _measure_bfloat16()
    if speed_up > 1.1:
        return torch.bfloat16, Choice("bfloat16", f"measured {speed_up:.1f}x as fast as float32 here")
    return None, Choice("float32", f"bfloat16 measured only {speed_up:.1f}x as fast here")


def _cpu_has_bfloat16() -> bool:
    try:
        with open("/proc/cpuinfo") as cpuinfo:
            flags = next((line for line in cpuinfo if line.startswith("flags")), "")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _measure_bfloat16() -> float:
    """How many times as fast a convolution's forward and backward is in bfloat16; interleaved, best of many.

    On one thread: several would wait for each other on a machine that is busy, and once measured 0.1 and 4.4 so.
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
    settings: Settings, device: torch.device, num_gpus: int, workers: int
) -> tuple[str | None, Choice]:
    if settings.compile == "off":
        return None, Choice("off", "COMPILE is off")
    if workers > 1:
        return None, Choice("off", "each of TRAINING_WORKERS has networks of its own")
    if num_gpus > 1:
        return None, Choice(
            "off", "USE_DATA_PARALLEL copies the network to each GPU, which compiled graphs do not survive"
        )
    if device.type == "cpu" and settings.compile == "auto":
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


def has_compiler() -> bool:
    """Whether torch.compile would find a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++", "c++"))


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


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as cpuinfo:
            for line in cpuinfo:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def prepare(plan: HardwarePlan) -> None:
    """Set what holds for the whole process."""
    keep_freed_memory()
    flush_denormals(True)
    if plan.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32, which torch.compile asks for on Ampere and newer


def flush_denormals(flush: bool) -> None:
    """Whether numbers so small that the processor takes its slow path count as zero; gradients fade into such.

    NumPy measures the limits of floats when it first needs them, and would warn about it: it does so before.
    """
    for kind in (np.float32, np.float64):
        np.finfo(kind)
    torch.set_flush_denormal(flush)


def keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks instead of returning them to the system.

    Each training step frees and allocates the same tens of megabytes. Returned pages are faulted in anew at every
    step: a train step of the CPU network measured 1.1 to 1.5 times as fast with them kept.
    """
    if sys.platform != "linux":
        return
    mallopt: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of <malloc.h>
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_threshold, 2**30)


def describe_machine() -> dict[str, str | int]:
    """The machine, for run records and benchmarks."""
    return {
        "cpu": _cpu_name(),
        "cores": num_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "gpu": torch.cuda.get_device_name() if has_gpu() else "none",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
