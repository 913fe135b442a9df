"""Checkpoints: everything a run needs to go on, in `checkpoints/<run>/checkpoint-<number>/`.

A checkpoint is a folder that appears in one step: its files are written beside the old ones under another name, synced,
and then renamed. A manifest carries their hashes; a damaged checkpoint is named and the one before it is used. The last
few are kept, and the one that followed the best evaluation, `checkpoint-<number>-best`. No pickle: tensors in
safetensors, numbers in JSON, replay in blocks that are compressed with zstd.
"""

import errno
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from mario_rl.errors import UserError
from mario_rl.storage.files import open_durably, sync_folder, write_durably

logger = logging.getLogger(__name__)

FORMAT = 2  # 1 had pictures in 0..1
TENSORS, NUMBERS, REPLAY, MANIFEST = "tensors.safetensors", "numbers.json", "replay.zst", "manifest.json"
BEST = "-best"
_NAME = re.compile(rf"checkpoint-(\d+)({BEST})?")


class CheckpointError(UserError):
    """No usable checkpoint; the message is for the user."""


class SaveAbandonedError(Exception):
    """A save was given up because the run is ending, with a save of its own."""


class Blocks(Protocol):
    """Bulk that is written piece by piece, and where each piece belongs."""

    def __iter__(self) -> Iterator[bytes]:
        """The pieces."""

    @property
    def layout(self) -> dict[str, Any]:
        """What is needed to read them again, once all were taken."""


class Checkpoint(NamedTuple):
    """What was loaded."""

    folder: Path
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]

    def read_replay(self) -> bytes:
        """The pieces of replay, one behind the other."""
        return (self.folder / REPLAY).read_bytes()


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def save(
        self,
        tensors: dict[str, Tensor],
        numbers: dict[str, Any],
        replay: Blocks | None = None,
        *,
        is_best: bool = False,
        should_abandon: Callable[[], bool] = lambda: False,
    ) -> Path:
        """Write a checkpoint, read it back, and then remove the ones that are no longer needed."""
        existing = self._existing()
        number = _number_of(existing[-1]) + 1 if existing else 1
        target = self.folder / f"checkpoint-{number:06d}{BEST if is_best else ''}"
        temporary = self.folder / f".saving-{number:06d}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            hashes = {}
            if replay is not None:
                hashes[REPLAY] = _write_blocks(temporary / REPLAY, replay, should_abandon)
                numbers = numbers | {"replay": replay.layout}
            contents = {
                TENSORS: save_tensors({name: t.detach().cpu().contiguous() for name, t in tensors.items()}),
                NUMBERS: json.dumps(numbers).encode(),
            }
            hashes |= {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
            contents[MANIFEST] = json.dumps({"format": FORMAT, "sha256": hashes}).encode()
            for name, content in contents.items():
                write_durably(temporary / name, content)
            sync_folder(temporary)
            _verify(temporary)
            temporary.rename(target)
            sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)  # half a checkpoint would keep a full disk full
            raise
        self._prune()
        return target

    def load_newest(self) -> Checkpoint:
        """The newest checkpoint that is whole."""
        damaged = []
        for folder in reversed(self._existing()):
            try:
                return _load(folder)
            except _DamagedError as error:
                damaged.append(f"{folder} is damaged ({error})")
                logger.warning("%s; looking for an older one.", damaged[-1])
        if damaged:
            raise CheckpointError(
                f"{'; '.join(damaged)}: no whole checkpoint is left, start a new run without --resume."
            )
        raise CheckpointError(f"There is no checkpoint in {self.folder}: start a new run without --resume.")

    def load_best(self) -> Checkpoint:
        """The checkpoint that followed the run's best evaluation."""
        best = [folder for folder in self._existing() if folder.name.endswith(BEST)]
        if not best:
            raise CheckpointError(
                f"No checkpoint in {self.folder} followed an evaluation of the policy: resume without --from-best."
            )
        try:
            return _load(best[-1])
        except _DamagedError as error:
            raise CheckpointError(f"{best[-1]} is damaged ({error}): resume without --from-best.") from None

    def _prune(self) -> None:
        existing = self._existing()
        best = [folder for folder in existing if folder.name.endswith(BEST)]
        for folder in existing[: -self._keep]:
            if folder not in best[-1:]:
                shutil.rmtree(folder, ignore_errors=True)

    def _existing(self) -> list[Path]:
        folders = [path for path in self.folder.glob("checkpoint-*") if path.is_dir() and _NAME.fullmatch(path.name)]
        return sorted(folders, key=_number_of)


def check_disk(folder: Path, needed: int) -> None:
    """CheckpointError where a run's checkpoints would not fit, before anything is started."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"Checkpoints need up to {needed / 1e6:,.0f} MB and {free / 1e6:,.0f} MB are free in {folder}: make room, "
            "lower KEEP_CHECKPOINTS, or set CHECKPOINT_REPLAY to False."
        )


def _write_blocks(path: Path, blocks: Blocks, should_abandon: Callable[[], bool]) -> str:
    """The file's hash."""
    digest = hashlib.sha256()
    with open_durably(path) as file:
        for block in blocks:
            file.write(block)
            digest.update(block)
            if should_abandon():
                raise SaveAbandonedError
    return digest.hexdigest()


class _DamagedError(Exception):
    pass


def _load(folder: Path) -> Checkpoint:
    try:
        hashes = _check_hashes(folder)
        tensors = load_tensors((folder / TENSORS).read_bytes())
        numbers = json.loads((folder / NUMBERS).read_bytes())
        if ("replay" in numbers) != (REPLAY in hashes):
            raise _DamagedError("its manifest and its numbers disagree about replay")
    except OSError as error:
        raise _DamagedError(f"{Path(str(error.filename)).name} cannot be read") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise _DamagedError("its content is not readable") from error
    except MemoryError:  # nothing is wrong with it, so an older one would be no better
        raise CheckpointError(
            f"{folder} does not fit into memory: close other programs, or start a new run without --resume."
        ) from None
    return Checkpoint(folder, tensors, numbers)


def _check_hashes(folder: Path) -> dict[str, str]:
    """What the manifest says about the files, after comparing it with them."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    if manifest["format"] != FORMAT:
        raise _DamagedError(f"format {manifest['format']} is not {FORMAT}")
    hashes: dict[str, str] = manifest["sha256"]
    if set(hashes) not in ({TENSORS, NUMBERS}, {TENSORS, NUMBERS, REPLAY}):
        raise _DamagedError("its manifest names other files than a checkpoint has")
    for name, expected in hashes.items():
        with open(folder / name, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise _DamagedError(f"{name} has changed since it was written")
    return hashes


def _verify(folder: Path) -> None:
    """OSError where a disk does not give back what was written: older checkpoints must not be removed then."""
    try:
        _check_hashes(folder)
    except (_DamagedError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OSError(errno.EIO, f"what was read back is not what was written: {error}") from error


def _number_of(folder: Path) -> int:
    return int(folder.name.removesuffix(BEST).removeprefix("checkpoint-"))
