"""How quiet the machine was while a study ran: what others took of the CPU, and what a fixed piece of work reached."""

import math
import os
import time
from typing import NamedTuple

import psutil
import torch

from mario_rl.machine.facts import num_cores

QUIET_SHARE = 0.15  # of the CPU: a study that had less than the rest says so
STEADY_SPEED = 0.8  # of the speed before a study: less after it, and the machine was not the same any more
MATRIX_SIZE = 1024


class Noise(NamedTuple):
    """What disturbed a study; not a number where that is unknown."""

    others_share: float  # of the CPU, used by processes that are not ours
    stolen_share: float  # of the CPU, given to other virtual machines by the host
    gigaflops_before: float  # of a large matrix product on all cores
    gigaflops_after: float

    @property
    def is_loud(self) -> bool:
        """Whether the figures deserve a warning."""
        slowest, fastest = sorted((self.gigaflops_before, self.gigaflops_after))
        taken = sum(share for share in (self.others_share, self.stolen_share) if not math.isnan(share))
        return taken > QUIET_SHARE or slowest < STEADY_SPEED * fastest

    def __str__(self) -> str:
        told = {
            f"other processes used {self.others_share:.0%} of the CPU": self.others_share,
            f"the host took {self.stolen_share:.0%}": self.stolen_share,
            f"a matrix product ran at {self.gigaflops_before:.0f} GFLOP/s before": self.gigaflops_before,
            f"at {self.gigaflops_after:.0f} after": self.gigaflops_after,
        }
        return ", ".join(text for text, value in told.items() if not math.isnan(value)) or "noise unknown"


class NoiseWatch:
    """Listens from its creation on."""

    def __init__(self) -> None:
        self._gigaflops = peak_flops(torch.device("cpu")) / 1e9
        self._begun = _CpuSeconds.now()

    def noise(self) -> Noise:
        """What there was since the beginning."""
        spent = _CpuSeconds(*(new - old for new, old in zip(_CpuSeconds.now(), self._begun, strict=True)))
        total = max(1e-9, spent.total)
        return Noise(
            others_share=max(0.0, spent.busy - spent.ours) / total,
            stolen_share=spent.stolen / total,
            gigaflops_before=self._gigaflops,
            gigaflops_after=peak_flops(torch.device("cpu")) / 1e9,
        )


class _CpuSeconds(NamedTuple):
    total: float  # of all cores
    busy: float
    stolen: float
    ours: float  # of this process and of all children that have ended, which a study's have when it is over

    @classmethod
    def now(cls) -> "_CpuSeconds":
        times = psutil.cpu_times()._asdict()
        own = os.times()
        stolen = times.get("steal", 0.0)  # Linux alone knows it
        # Guests are counted as users already.
        total = sum(seconds for kind, seconds in times.items() if not kind.startswith("guest"))
        idle = times["idle"] + times.get("iowait", 0.0)
        ours = own.user + own.system + own.children_user + own.children_system
        return cls(total, total - idle - stolen, stolen, ours)


def busy_share() -> float:
    """How much of the machine others use right now."""
    return float(psutil.cpu_percent(interval=1.0)) / 100


def peak_flops(device: torch.device) -> float:
    """Operations a second of a large float32 matrix product, the best of a few; on all cores, or on the GPU."""
    previous = torch.get_num_threads()
    torch.set_num_threads(num_cores())
    left, right = (torch.rand(MATRIX_SIZE, MATRIX_SIZE, device=device) for _ in range(2))
    best = float("inf")
    for _ in range(12):
        begun = time.perf_counter()
        product = torch.mm(left, right)
        float(product[0, 0])  # a GPU has finished when this is known
        best = min(best, time.perf_counter() - begun)
    torch.set_num_threads(previous)
    return 2.0 * MATRIX_SIZE**3 / best
