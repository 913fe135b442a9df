"""Saves and restores a run: all its parts in a checkpoint, and its policies in models/."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from mario_rl.accounts.flow import FlowControl
from mario_rl.accounts.ledger import Ledger
from mario_rl.agent.network import NETWORK_SETTINGS, NetworkShape, QNetwork
from mario_rl.environment.observation import OBSERVATION
from mario_rl.ranges import Between
from mario_rl.replay.sampler import Sampler
from mario_rl.replay.saving import COMPRESSED_SHARE, ReplayBlocks, restore_replay
from mario_rl.replay.streams import FRAME_BYTES, ReplayStreams
from mario_rl.saved_part import SavedPart, check_like
from mario_rl.storage.checkpoints import Checkpoint, CheckpointStore
from mario_rl.storage.policies import Policy, export_policy

NETWORK_COPIES = 5  # online, target, average, and Adam's two moments
NOT_SAVED_BEFORE = {"network": "convolutions"}  # of a network's shape, by an earlier version


@dataclass(frozen=True)
class SavingRules:
    """What is kept of a run."""

    keep_checkpoints: Annotated[int, Between(1, 1000)]
    checkpoint_replay: bool
    replay_save_seconds: Annotated[float, Between(0.0, 1e6)]


class RunSaver:
    """Knows all parts that a checkpoint keeps, by the names that they have there."""

    def __init__(
        self,
        rules: SavingRules,
        policy: Policy,
        parts: Mapping[str, SavedPart],
        ledger: Ledger,
        flow: FlowControl,
        sampler: Sampler,
        replay: ReplayStreams,
        streams_per_collector: int,
    ) -> None:
        self._rules = rules
        self._policy = policy
        self._parts: dict[str, SavedPart] = {"ledger": ledger, "flow": flow, **parts}
        self._ledger, self._flow, self.sampler, self.replay = ledger, flow, sampler, replay
        self._streams_per_collector = streams_per_collector

    def save(self, store: CheckpointStore, *, is_best: bool, should_abandon: Callable[[], bool]) -> None:
        """Write a checkpoint of everything."""
        parts = self._parts | {"sampler": self.sampler}
        numbers: dict[str, Any] = {name: part.state() for name, part in parts.items()}
        numbers["network_shape"] = self._policy.shape._asdict()
        numbers["observation"] = OBSERVATION
        tensors = {name: tensor for part in parts.values() for name, tensor in part.tensors().items()}
        blocks = None
        if self._rules.checkpoint_replay:
            blocks = ReplayBlocks(self.replay, self._rules.replay_save_seconds)
        store.save(tensors, numbers, blocks, is_best=is_best, should_abandon=should_abandon)

    def restore(self, checkpoint: Checkpoint) -> list[str]:
        """Continue from a checkpoint, before anything runs; what could not be restored, in words.

        ValueError, TypeError, LookupError and the like where it holds something else than this version saves: all of
        it is looked at here, since a part that stumbles later does so when processes run already.
        """
        numbers, tensors = _as_saved_now(checkpoint.numbers), checkpoint.tensors
        for name, part in self._parts.items():
            part.check(numbers[name], tensors)
        if numbers["ledger"]["num_episodes"] - numbers["progress"].get("num_episodes", 0) != len(
            numbers["ledger"]["new_episodes"]
        ):
            raise ValueError("ledger and progress disagree about the episodes that no epoch has counted yet")
        missing = self._restore_counters(checkpoint, numbers)
        for name, part in self._parts.items():
            if name not in ("ledger", "flow"):
                missing += part.load(numbers[name], tensors)
        return missing

    def _restore_counters(self, checkpoint: Checkpoint, numbers: dict[str, Any]) -> list[str]:
        """Ledger, flow, replay and sampler, which depend on each other."""
        ledger, flow, replay, sampler = self._ledger, self._flow, self.replay, self.sampler
        ledger.load(numbers["ledger"], {})
        flow.load(numbers["flow"], {})
        flow.follow_new_ratio(ledger.collected, ledger.trained)
        layout = numbers.get("replay")
        num_actions = self._policy.shape.num_actions
        sees_the_same = numbers.get("observation") == OBSERVATION
        restored = (
            bool(layout)
            and sees_the_same
            and restore_replay(replay, layout, checkpoint.read_replay, self._streams_per_collector, num_actions)
        )
        # Priorities belong to the rows that they were given to.
        sampler_state = numbers["sampler"] if restored else {"rng": numbers["sampler"]["rng"]}
        sampler.check(sampler_state, checkpoint.tensors)
        sampler.load(sampler_state, checkpoint.tensors)
        missing = []
        if not sees_the_same:
            missing.append("an earlier version drew pictures in another way, so the policy has to get used to today's")
        is_warm = ledger.collected >= flow.begin_collected
        too_few = replay.num_rows < min(flow.rules.warmup_experiences, ledger.collected)
        if too_few or (is_warm and not sampler.can_draw()):
            flow.warm_up_again(ledger.collected, ledger.trained)
            state = "holds few experiences" if restored else "starts empty"
            missing.append(f"replay {state} and is filled again before learning goes on")
        sampler.load(sampler_state, checkpoint.tensors)  # once more, as it was before it drew
        return missing

    def export(self, path: Path, weights: dict[str, torch.Tensor], card: dict[str, Any]) -> str | None:
        """Write a policy; why that was not possible, if so."""
        try:
            export_policy(path, self._policy._replace(weights=weights), card)
        except OSError as error:
            return f"{path.name} could not be written ({error.strerror or error})"
        return None


def check_network(saved: Any, mine: NetworkShape) -> str | None:
    """Why a checkpoint's network is not this one, if so, in words; ValueError where it is none."""
    wanted = {name: list(value) if isinstance(value, tuple) else value for name, value in mine._asdict().items()}
    check_like(saved, wanted, "network_shape")
    saved = NOT_SAVED_BEFORE | saved
    if saved == wanted:
        return None
    return (
        f"The run's network has {saved}, the settings ask for {wanted}: a resumed run keeps "
        f"{NETWORK_SETTINGS}, ACTIONS and what the range of values follows from "
        "(GAMMA, REWARD_SCALE, FLAG_BONUS, FRAME_SKIP); start a new run to change them."
    )


def bytes_needed(rules: SavingRules, shape: NetworkShape, buffer_size: int) -> int:
    """What a run's checkpoints take on a disk, at most."""
    with torch.device("meta"):
        num_parameters = sum(parameter.numel() for parameter in QNetwork(shape).parameters())
    needed = NETWORK_COPIES * 4 * num_parameters
    if rules.checkpoint_replay:
        needed += int(COMPRESSED_SHARE * buffer_size * FRAME_BYTES)
    return needed * (rules.keep_checkpoints + 2)  # the best one, and a new one before an old one is removed


def _as_saved_now(numbers: dict[str, Any]) -> dict[str, Any]:
    """What an earlier version has saved, as this one would: the sampler's generator stood beside it."""
    if "sampler_rng" not in numbers:
        return numbers
    return numbers | {"sampler": numbers.get("sampler", {}) | {"rng": numbers["sampler_rng"]}}
