"""Going on with a run: its settings, its checkpoint, and what may be wrong with either."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mario_rl.errors import shown
from mario_rl.machine.facts import has_gpu
from mario_rl.settings.choosing import ChosenSettings, SettingsError, choose_resumed_settings
from mario_rl.settings.settings import Settings
from mario_rl.storage import runs
from mario_rl.storage.checkpoints import Checkpoint, CheckpointError, CheckpointStore
from mario_rl.training.limits import Limits
from mario_rl.training.saving import RunSaver, check_network

LEVEL_SETTINGS = ("WORLD", "STAGE", "LEVELS")
# What a checkpoint of strange content may raise on its way into the parts of a run.
_UNFIT = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError, MemoryError)


def choose_as_saved(
    resumed: runs.Run, assigned: dict[str, Any], read_config: Callable[[], tuple[dict[str, Any], dict[str, Any]]]
) -> ChosenSettings:
    """The run's settings with what the command line changes, which must not be its level."""
    saved = runs.read_settings(resumed)

    def choose(changes: dict[str, Any]) -> ChosenSettings:
        return choose_resumed_settings(saved, read_config, changes, has_gpu=has_gpu)

    chosen = choose(assigned)
    new = chosen.settings.task
    old = choose({name: value for name, value in assigned.items() if name not in LEVEL_SETTINGS}).settings.task
    if (new.world, new.stage, new.levels_played) == (old.world, old.stage, old.levels_played):
        return chosen
    asks_for_levels = new.levels and new.levels != old.levels
    wish = f'--set "LEVELS={list(new.levels)}"' if asks_for_levels else f"--world {new.world} --stage {new.stage}"
    models = [path for path in (resumed.best_model, resumed.newest_model) if path.exists()]
    init = f"--init {typed(models[0])} " if models else ""
    played = " and ".join(map(str, old.levels_played))
    raise SettingsError(
        [
            f"Run {resumed.name} plays {played}, and its replay, evaluations and best model are of that: to play "
            f"something else, start a new run, for example with {init}{wish}."
        ]
    )


def load_checkpoint(resumed: runs.Run, from_best: bool, settings: Settings, limits: Limits) -> Checkpoint:
    """Where to go on from: a checkpoint of this network, of a run that is not finished."""
    store = CheckpointStore(resumed.checkpoints, settings.saving.keep_checkpoints)
    checkpoint = store.load_best() if from_best else store.load_newest()
    try:
        epoch, collected = checkpoint.numbers["progress"]["epoch"], checkpoint.numbers["ledger"]["collected"]
        reached = limits.reached(epoch, collected, 0.0)
        other_network = check_network(checkpoint.numbers["network_shape"], settings.network_shape)
    except _UNFIT as error:
        raise _does_not_fit(checkpoint, error) from None
    if other_network:
        raise CheckpointError(other_network)
    if reached:
        raise CheckpointError(
            f"Run {resumed.name} is finished: {reached}. Extend it, for example with --epochs {epoch + 500}."
        )
    return checkpoint


def restore(saver: RunSaver, checkpoint: Checkpoint) -> list[str]:
    """Continue from a checkpoint; what could not be restored, in words."""
    try:
        return saver.restore(checkpoint)
    except _UNFIT as error:
        raise _does_not_fit(checkpoint, error) from None


def _does_not_fit(checkpoint: Checkpoint, error: Exception) -> CheckpointError:
    """Whole by its hashes, and yet not what this version writes."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return CheckpointError(
        f"{typed(checkpoint.folder)} holds something else than this version expects ({shown(reason)[1:-1]}): "
        "start a new run without --resume."
    )


def typed(path: Path) -> str:
    """A path as the user would type it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
