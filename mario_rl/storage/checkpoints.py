"""Checkpoints: everything a run needs to go on, in `checkpoints/<run>/checkpoint-<number>/`.

A checkpoint is a folder that appears in one step: its files are written beside the old ones under another name, synced,
and then renamed. A manifest carries their hashes; a damaged checkpoint is named and the one before it is used. The last
few are kept, and the one that followed the best test, `checkpoint-<number>-best`. No pickle: tensors in safetensors,
numbers in JSON, replay in blocks that are compressed with zstd.
"""

import errno
import hashlib
import json
import logging
import re
import shutil
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import zstandard
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.errors import UserError
from mario_rl.replay.streams import BYTES_PER_STORED_ROW, FRAME_BYTES, ReplayStreams, StoredRows
from mario_rl.settings.schema import Settings
from mario_rl.storage.checks import check_like
from mario_rl.storage.files import open_durably, sync_folder, write_durably

logger = logging.getLogger(__name__)

FORMAT = 2  # 1 had pictures in 0..1
TENSORS, NUMBERS, REPLAY, MANIFEST = "tensors.safetensors", "numbers.json", "replay.zst", "manifest.json"
ROWS_PER_BLOCK = 512  # 3.6 MB before compression
COMPRESSED_SHARE = 0.15  # of replay's pictures that is left by compression; 0.06 for what a policy plays in 1-1
NETWORK_COPIES = 5  # online, target, average, and Adam's two moments
BEST = "-best"
_NAME = re.compile(rf"checkpoint-(\d+)({BEST})?")


class CheckpointError(UserError):
    """No usable checkpoint; the message is for the user."""


class SaveAbandonedError(Exception):
    """A save was given up because the run is ending, with a save of its own."""


class Checkpoint(NamedTuple):
    """What was loaded."""

    folder: Path
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def save(
        self,
        tensors: dict[str, Tensor],
        numbers: dict[str, Any],
        replay: ReplayStreams | None,
        replay_budget_seconds: float,
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
                path = temporary / REPLAY
                hashes[REPLAY], layout = _write_replay(path, replay, replay_budget_seconds, should_abandon)
                numbers = numbers | {"replay": layout}
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
        """The checkpoint that followed the run's best test."""
        best = [folder for folder in self._existing() if folder.name.endswith(BEST)]
        if not best:
            raise CheckpointError(
                f"No checkpoint in {self.folder} followed a test of the policy: resume without --from-best."
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


def check_disk(folder: Path, settings: Settings, shape: NetworkShape) -> None:
    """CheckpointError where a run's checkpoints would not fit, before anything is started."""
    with torch.device("meta"):
        num_parameters = sum(parameter.numel() for parameter in QNetwork(shape).parameters())
    needed = NETWORK_COPIES * 4 * num_parameters
    if settings.checkpoint_replay:
        needed += int(COMPRESSED_SHARE * settings.buffer_size * FRAME_BYTES)
    needed *= settings.keep_checkpoints + 2  # the best one, and a new one before an old one is removed
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"Checkpoints need up to {needed / 1e6:,.0f} MB and {free / 1e6:,.0f} MB are free in {folder}: make room, "
            "lower KEEP_CHECKPOINTS, or set CHECKPOINT_REPLAY to False."
        )


def restore_replay(checkpoint: Checkpoint, replay: ReplayStreams, streams_per_collector: int) -> bool:
    """Fill replay from a checkpoint; False when it holds none, or one of another layout.

    ValueError, TypeError or LookupError where what it holds is no replay; then replay must not be used.
    """
    saved = checkpoint.numbers.get("replay")
    if not saved or saved["num_streams"] != replay.num_streams or saved["length"] != replay.length:
        return False
    counters = saved["counters"]
    check_like(counters, replay.counters(), "replay.counters")
    # A collector's streams grow in step; those of a run with other processes did so in other groups.
    groups = np.reshape(counters["written_end"], (-1, streams_per_collector))
    if (groups != groups[:, :1]).any():
        return False
    packed = (checkpoint.folder / REPLAY).read_bytes()
    unfilled_end = list(counters["written_end"])  # of each stream: blocks come newest first and leave no gap
    for number, block in enumerate(saved["blocks"]):
        check_like(block, dict.fromkeys(("stream", "begin", "offset", "size"), 0), f"replay.blocks[{number}]")
        stream, begin, offset = block["stream"], block["begin"], block["offset"]
        rows = _unpack_rows(packed[offset : offset + block["size"]], replay.length)
        if not 0 <= stream < replay.num_streams or begin < 0 or begin + len(rows.action) != unfilled_end[stream]:
            raise ValueError(f"replay.blocks[{number}] is not where it belongs")
        replay.restore(stream, begin, rows)
        unfilled_end[stream] = begin
    if unfilled_end != counters["first_kept"]:
        raise ValueError("replay.blocks are not all there")
    replay.restore_counters(counters)
    return True


def _write_replay(
    path: Path, replay: ReplayStreams, budget_seconds: float, should_abandon: Callable[[], bool]
) -> tuple[str, dict[str, Any]]:
    """Blocks of rows, newest first, until the time is over; the streams take turns. The file's hash and its layout.

    Appends may go on meanwhile: rows are copied first, and a block whose rows were claimed by then is left out.
    """
    deadline = time.monotonic() + budget_seconds
    compressor = zstandard.ZstdCompressor(level=1)
    counters = replay.counters()
    unsaved = {stream: counters["written_end"][stream] for stream in range(replay.num_streams)}
    digest, offset = hashlib.sha256(), 0
    blocks: list[dict[str, int]] = []
    with open_durably(path) as file:
        while unsaved:
            for stream, end in list(unsaved.items()):
                if should_abandon():
                    raise SaveAbandonedError
                begin = max(replay.oldest(stream), end - ROWS_PER_BLOCK)
                counters["first_kept"][stream] = end
                if begin >= end or (time.monotonic() > deadline and blocks):
                    del unsaved[stream]
                    continue
                rows = replay.read(stream, begin, end)
                if begin < int(replay.claimed_end[stream]) - replay.length:
                    del unsaved[stream]
                    continue
                content = compressor.compress(b"".join(np.ascontiguousarray(column).tobytes() for column in rows))
                file.write(content)
                digest.update(content)
                blocks.append({"stream": stream, "begin": begin, "offset": offset, "size": len(content)})
                offset += len(content)
                unsaved[stream] = begin
    layout = {"num_streams": replay.num_streams, "length": replay.length}
    return digest.hexdigest(), layout | {"blocks": blocks, "counters": counters}


def _unpack_rows(packed: bytes, most_rows: int) -> StoredRows:
    """The rows of a block; ValueError where it is none. It may claim any size: that is looked at first."""
    try:
        num_rows, rest = divmod(zstandard.frame_content_size(packed), BYTES_PER_STORED_ROW)
        if rest or not 0 < num_rows <= most_rows:
            raise ValueError("a block of replay has another size than its rows")
        content = zstandard.ZstdDecompressor().decompress(packed)
    except zstandard.ZstdError as error:
        raise ValueError(f"a block of replay cannot be unpacked: {error}") from None
    bounds = np.cumsum([0, num_rows * FRAME_BYTES, num_rows, num_rows * 4, num_rows, num_rows])
    parts = [content[begin:end] for begin, end in pairwise(bounds)]
    return StoredRows(
        np.frombuffer(parts[0], np.uint8).reshape(num_rows, FRAME_BYTES),
        np.frombuffer(parts[1], np.uint8),
        np.frombuffer(parts[2], np.float32),
        np.frombuffer(parts[3], np.uint8),
        np.frombuffer(parts[4], np.uint8),
    )


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
