"""What a checkpoint must look like before a pipeline takes it up: ValueError and its like where it does not.

A checkpoint that is whole by its hashes may still come from elsewhere. A part that stumbles over it later would do so
when processes run already, so types, ranges and sizes are compared first with what this version would save itself.
"""

import math
from typing import Any

import numpy as np
import torch

from mario_rl.replay.streams import ReplayStreams
from mario_rl.settings.schema import shown

LARGEST_COUNT = 10**15  # of decisions, updates, ...: what a run of a thousand years does not reach, and int64 holds


def check_like(saved: Any, expected: Any, name: str) -> None:
    """ValueError where a saved value is of another kind than the one that this version would save in its place.

    Numbers may differ, and lists may not differ in length. What an older version did not save yet is not missed here.
    """
    if isinstance(expected, dict):
        fits = isinstance(saved, dict)
        for key, value in expected.items() if fits else ():
            if key in saved:
                check_like(saved[key], value, f"{name}.{key}")
    elif isinstance(expected, list):
        fits = isinstance(saved, list) and len(saved) == len(expected)
        for number, value in enumerate(expected if fits else ()):
            check_like(saved[number], value, f"{name}[{number}]")
    elif isinstance(expected, float):
        fits = isinstance(saved, int | float) and not isinstance(saved, bool) and math.isfinite(saved)
    else:
        fits = type(saved) is type(expected)  # True is no number here
    if not fits:
        raise ValueError(f"{name} is {shown(saved)}")


def check_numbers(saved: dict[str, Any], expected: dict[str, dict[str, Any]]) -> None:
    """Types and ranges of everything that the main loop counts, part by part."""
    ledger, progress = saved["ledger"], saved["progress"]
    # Lists of their own lengths: of episodes (as EpisodeSummary) and of tests.
    episodes = {"new_episodes": [[0.0, 0, 0, False] for _ in ledger["new_episodes"]]}
    evaluations = {"evaluations": [[0.0, 0.0, 0.0] for _ in progress.get("evaluations", [])]}
    lists = {"ledger": episodes, "progress": evaluations}
    for part, values in expected.items():
        check_like(saved[part], values | lists.get(part, {}), part)
        for name, value in saved[part].items():
            if isinstance(value, int) and not 0 <= value <= LARGEST_COUNT:
                raise ValueError(f"{part}.{name} is {value}")
    if not 0 < saved["learner"].get("rate_factor", 1.0) <= 1:
        raise ValueError(f"learner.rate_factor is {saved['learner']['rate_factor']}")
    if ledger["num_episodes"] - progress.get("num_episodes", 0) != len(ledger["new_episodes"]):
        raise ValueError("ledger and progress disagree about the episodes that no epoch has counted yet")


def check_optimizer(tensors: dict[str, torch.Tensor], parameters: list[torch.nn.Parameter]) -> None:
    """All of Adam's state, or nothing of it: the fused step reads memory by the parameters' sizes."""
    saved = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items() if name.startswith("optimizer.")}
    expected = {
        f"optimizer.{index}.{slot}": (torch.Size() if slot == "step" else parameter.shape, torch.float32)
        for index, parameter in enumerate(parameters)
        for slot in ("step", "exp_avg", "exp_avg_sq")
    }
    if saved and saved != expected:
        raise ValueError("the optimizer's state is of another network")


def check_sampler(
    saved: Any, tensors: dict[str, torch.Tensor], expected: dict[str, Any], replay: ReplayStreams, num_actions: int
) -> None:
    """Priorities, and the restored rows that they belong to."""
    if int(replay.action.max(initial=0)) >= num_actions:
        raise ValueError("replay holds an action that there is not")
    check_like(saved, expected, "sampler")
    priorities = tensors.get("sampler.priorities")
    if priorities is not None and not bool((torch.isfinite(priorities) & (priorities >= 0)).all()):
        raise ValueError("sampler.priorities are not all numbers from 0 up")
    if (np.array(saved.get("admitted_end", 0)) > replay.written_end).any():
        raise ValueError("sampler.admitted_end is behind the end of replay")


def check_source(saved: dict[str, Any], expected: dict[str, Any], num_actions: int) -> None:
    """What serial mode goes on from; of another emulator, level or mode it is not taken up and may be anything."""
    if not saved or not expected or not isinstance(saved["episodes"], dict):
        return
    if saved["episodes"].get("format") == expected["episodes"]["format"]:
        check_like(saved, expected, "source")
        actions = saved["explorer"]["held"] + saved["explorer"]["last"]
        if not all(0 <= action < num_actions for action in actions):
            raise ValueError("source.explorer holds an action that there is not")
