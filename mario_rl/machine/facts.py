"""What this machine has: cores, a GPU, a compiler, names."""

import os
import platform
import shutil

import psutil
import torch


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def has_gpu() -> bool:
    """Whether torch sees a CUDA device."""
    return torch.cuda.is_available()


def has_compiler() -> bool:
    """Whether torch.compile would find a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++", "c++"))


def cpu_has_bfloat16() -> bool:
    """Whether the processor has arithmetic for bfloat16; emulating it is several times slower than float32."""
    return any(flag in _cpu_fact("flags") for flag in ("avx512_bf16", "amx_bf16"))


def cpu_name() -> str:
    """The processor's name."""
    return _cpu_fact("model name") or platform.processor() or platform.machine()


def _cpu_fact(name: str) -> str:
    """What Linux says about the first processor; empty elsewhere."""
    try:
        with open("/proc/cpuinfo") as cpuinfo:
            return next((line.partition(":")[2].strip() for line in cpuinfo if line.startswith(name)), "")
    except OSError:
        return ""


def describe_machine() -> dict[str, str | int]:
    """The machine, for run records and benchmarks."""
    return {
        "cpu": cpu_name(),
        "bfloat16": "yes" if cpu_has_bfloat16() else "no",  # virtual machines of one name differ in it
        "cores": num_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "gpu": torch.cuda.get_device_name() if has_gpu() else "none",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
