"""Replay: uniform and prioritized draws, how they grow, and Stable-Baselines3's and TorchRL's beside them."""

import importlib.util
from collections.abc import Callable
from functools import partial

import numpy as np
import psutil
import torch

from benchmarks.buffers import (
    BATCH_SIZE,
    BYTES_PER_PEER_EXPERIENCE,
    NUM_ENVS,
    Buffer,
    Ours,
    StableBaselines,
    TorchRl,
    TorchRlPrioritized,
)
from benchmarks.measure import (
    BROKEN_INSTALL,
    Ratio,
    Sample,
    StudyResult,
    as_is,
    at_least,
    at_most,
    first_line,
    interleave,
    quotient,
    rate,
)
from benchmarks.product import product_device, product_settings
from benchmarks.synthetic import EPISODE_LENGTH, synthetic_rows
from mario_rl.learning.learner import Learner
from mario_rl.learning.rules import Execution
from mario_rl.learning.sampling import SampleInline
from mario_rl.learning.trainers import LoneTrainer
from mario_rl.machine.process_tuning import keep_freed_memory
from mario_rl.replay.prioritized import PrioritizedSampler, PriorityRules
from mario_rl.replay.sampler import Sampler, SamplingRules
from mario_rl.replay.streams import BYTES_PER_STORED_ROW, ReplayStreams
from mario_rl.replay.sum_tree import SumTree
from mario_rl.replay.uniform import UniformSampler

QUESTION = "What does a batch from replay cost, uniform and prioritized, small and large, ours and others'?"
TEACHES = (
    "A uniform draw takes about as long from a small replay as from a large one: one random-number call and one "
    "gather, whatever lies in between. With a compiled sum tree a prioritized draw costs hardly more, and a train "
    "step hardly shows it. Against Stable-Baselines3 and TorchRL the gain is memory first, since single pictures are "
    "stored instead of two stacks for every experience."
)
SECONDS = {"quick": 15, "full": 180}
SMALL, LARGE, LARGEST = 10_000, 100_000, 1_000_000  # experiences
SAMPLING = SamplingRules(gamma=0.9, n_step=5, picture_shift=2)
PRIORITIES = PriorityRules(
    prioritized_replay=True, priority_exponent=0.6, priority_correction=0.4, priority_correction_decisions=400_000
)


def run(quick: bool) -> StudyResult:
    """Draws from all buffers in turns; then large peers, train steps with our samplers, and the sum trees."""
    keep_freed_memory()  # as the product does; by default every large allocation of a peer would fault in anew
    seconds, repeats = (0.15, 2) if quick else (0.5, 9)
    notes: list[str] = []
    peers = _peers_at_hand(notes)
    sizes = _sizes_that_fit(quick, len(peers), notes)
    buffers: dict[str, Buffer] = {}
    for size in sizes:
        streams = _full_streams(size)
        buffers[f"uniform, {size:,}"] = Ours(_uniform(streams))
        buffers[f"prioritized, {size:,}"] = Ours(_prioritized(streams))
    for name, make in list(peers.items()):
        try:
            buffers[f"{name}, {SMALL:,}"] = make(SMALL)
        except BROKEN_INSTALL as error:  # TorchRL's compiled part must fit torch's exact version
            notes.append(f"{name} was left out: {first_line(error)}")
            del peers[name]

    def draw(drawn_from: dict[str, Buffer]) -> dict[str, Sample]:
        calls = {name: partial(_seconds_of, buffer.draw, seconds) for name, buffer in drawn_from.items()}
        return interleave(calls, repeats)

    drawn = draw(buffers)
    rows = [_row(name, sample, buffers[name]) for name, sample in drawn.items()]
    ratios = _ratios(drawn, buffers, sizes[-1])
    ours_large = buffers[f"uniform, {LARGE:,}"]
    buffers.clear()
    for name, make in {} if quick else peers.items():
        needed = LARGE * BYTES_PER_PEER_EXPERIENCE
        if needed > 0.8 * psutil.virtual_memory().available:
            notes.append(f"{name} with {LARGE:,} experiences was left out: {needed / 1e9:.1f} GB are not free here.")
            continue
        row, ratio = _beside_ours(name, make, ours_large, draw)
        rows.append(row)
        ratios[f"times as fast as {name}, {LARGE:,} experiences in both"] = ratio
    steps = _train_steps(seconds=0.6 if quick else 3.0, repeats=2 if quick else 7)
    ratios["a train step with prioritized replay against uniform, time"] = at_most(
        quotient(steps["prioritized"], steps["uniform"]), 1.5, "x"
    )
    trees = _sum_trees(seconds / 2, repeats, notes)
    rows += [_row(f"a sum tree of 100,000: {name}", sample) for name, sample in trees.items()]
    ours = trees.pop("ours, compiled")
    ratios |= {f"our sum tree, times as fast as {name}": as_is(quotient(t, ours), "x") for name, t in trees.items()}
    return StudyResult(
        rows,
        ratios,
        [
            "A batch is 512 stacks of states and 512 of next states, uint8. Ours builds stacks and 5-step returns as "
            "it draws; the others store both stacks of every experience and draw 1-step. With priorities, 512 errors "
            "also go back. All buffers are in the CPU's memory.",
            *notes,
        ],
    )


def _peers_at_hand(notes: list[str]) -> dict[str, Callable[[int], Buffer]]:
    peers: dict[str, tuple[str, Callable[[int], Buffer]]] = {
        "Stable-Baselines3": ("stable_baselines3", StableBaselines),
        "TorchRL": ("torchrl", TorchRl),
        "TorchRL prioritized": ("torchrl", TorchRlPrioritized),
    }
    missing = [name for name, (package, _) in peers.items() if importlib.util.find_spec(package) is None]
    notes += [f"{name} is not installed (requirements-bench.txt) and was left out." for name in missing]
    return {name: make for name, (_, make) in peers.items() if name not in missing}


def _sizes_that_fit(quick: bool, num_peers: int, notes: list[str]) -> list[int]:
    """Sizes of our own buffers, which are measured side by side with each other and with small peers."""
    sizes = [SMALL, LARGE] if quick else [SMALL, LARGE, LARGEST]
    needed = (sum(sizes) + 2 * SMALL) * BYTES_PER_STORED_ROW + num_peers * SMALL * BYTES_PER_PEER_EXPERIENCE
    if needed > 0.8 * psutil.virtual_memory().available:
        notes.append(f"{LARGEST:,} experiences were left out: {needed / 1e9:.0f} GB are not free here.")
        return sizes[:2]
    return sizes


def _beside_ours(
    name: str,
    make: Callable[[int], Buffer],
    ours: Buffer,
    draw: Callable[[dict[str, Buffer]], dict[str, Sample]],
) -> tuple[dict[str, str], Ratio]:
    """A large peer in turns with ours; it is gone before the next one is made, since two would not fit everywhere."""
    theirs = make(LARGE)
    drawn = draw({"ours": ours, "theirs": theirs})
    return _row(f"{name}, {LARGE:,}", drawn["theirs"], theirs), as_is(quotient(drawn["theirs"], drawn["ours"]), "x")


def _row(name: str, sample: Sample, buffer: Buffer | None = None) -> dict[str, str]:
    return {
        "replay": name,
        "ms a batch of 512": f"{1e3 * sample.median:.2f}",
        "spread": f"{sample.spread:.0%}",
        "memory": f"{buffer.num_bytes / 1e6:,.0f} MB" if buffer else "",
        "bytes an experience": f"{buffer.num_bytes / buffer.size:,.0f}" if buffer else "",
    }


def _ratios(drawn: dict[str, Sample], buffers: dict[str, Buffer], largest: int) -> dict[str, Ratio]:
    uniform = f"uniform, {SMALL:,}"
    ratios = {
        f"uniform: {largest:,} against {SMALL:,} experiences, time": at_most(
            quotient(drawn[f"uniform, {largest:,}"], drawn[uniform]), 1.5, "x"
        ),
        f"prioritized: {largest:,} against {SMALL:,} experiences, time": as_is(
            quotient(drawn[f"prioritized, {largest:,}"], drawn[f"prioritized, {SMALL:,}"]), "x"
        ),
        "a prioritized draw against a uniform one, time": as_is(
            quotient(drawn[f"prioritized, {LARGE:,}"], drawn[f"uniform, {LARGE:,}"]), "x"
        ),
    }
    for peer in ("Stable-Baselines3", "TorchRL"):
        if (name := f"{peer}, {SMALL:,}") in drawn:
            ratios[f"times as fast as {peer}"] = at_least(quotient(drawn[name], drawn[uniform]), 1.0, "x")
            share = buffers[uniform].num_bytes / buffers[name].num_bytes
            ratios[f"of {peer}'s memory"] = at_most(Sample([share]), 1 / 6, "x")
    return ratios


def _full_streams(size: int) -> ReplayStreams:
    streams = ReplayStreams(NUM_ENVS, size)
    rows = synthetic_rows(NUM_ENVS, EPISODE_LENGTH)
    for _ in range(streams.length // EPISODE_LENGTH + 1):  # full, and wrapped around
        streams.append(0, rows)
    return streams


def _uniform(streams: ReplayStreams) -> UniformSampler:
    return UniformSampler(streams, SAMPLING, np.random.default_rng(0))


def _prioritized(streams: ReplayStreams) -> PrioritizedSampler:
    return PrioritizedSampler(streams, SAMPLING, np.random.default_rng(0), PRIORITIES)


def _train_steps(seconds: float, repeats: int) -> dict[str, Sample]:
    """Seconds that an update takes with either sampler, drawn inline: nothing is hidden in another thread."""
    settings = product_settings()
    device = product_device(settings)
    streams = _full_streams(SMALL)

    def step(sampler: Sampler) -> Callable[[], float]:
        torch.manual_seed(0)
        learner = Learner(settings.network_shape, settings.learning, Execution(device))
        trainer = LoneTrainer(learner, SampleInline(sampler, settings.learning.sample_size))
        return partial(_seconds_of, trainer.train, seconds)

    return interleave({"uniform": step(_uniform(streams)), "prioritized": step(_prioritized(streams))}, repeats)


def _sum_trees(seconds: float, repeats: int, notes: list[str]) -> dict[str, Sample]:
    """Drawing 512 and updating 512 of 100,000 leaves, with every tree at hand."""
    calls: dict[str, Callable[[], None]] = {"ours, compiled": _our_tree()}
    for name, make in {"Tianshou": _tianshou_tree, "cpprb": _cpprb_tree, "TorchRL": _torchrl_tree}.items():
        try:
            calls[f"{name}'s"] = make()
        except BROKEN_INSTALL as error:
            notes.append(f"{name}'s sum tree was left out: {first_line(error)}")
    return interleave({name: partial(_seconds_of, call, seconds) for name, call in calls.items()}, repeats)


def _our_tree() -> Callable[[], None]:
    rng = np.random.default_rng(0)
    tree, values = SumTree(LARGE), rng.random(BATCH_SIZE)
    tree.set(np.arange(LARGE), rng.random(LARGE))
    return lambda: tree.set(tree.find(rng.random(BATCH_SIZE) * tree.total), values)


def _tianshou_tree() -> Callable[[], None]:
    from tianshou.data.utils.segtree import SegmentTree

    rng = np.random.default_rng(0)
    tree, values = SegmentTree(LARGE), rng.random(BATCH_SIZE)
    tree[np.arange(LARGE)] = rng.random(LARGE)

    def call() -> None:
        tree[tree.get_prefix_sum_idx(rng.random(BATCH_SIZE) * tree.reduce())] = values

    return call


def _cpprb_tree() -> Callable[[], None]:
    """A buffer of single numbers: its tree is not to be had alone."""
    from cpprb import PrioritizedReplayBuffer

    rng = np.random.default_rng(0)
    buffer, values = PrioritizedReplayBuffer(LARGE, {"number": {}}), rng.random(BATCH_SIZE)
    buffer.add(number=np.zeros(LARGE), priorities=rng.random(LARGE))
    return lambda: buffer.update_priorities(buffer.sample(BATCH_SIZE)["indexes"], values)


def _torchrl_tree() -> Callable[[], None]:
    from torchrl._torchrl import SumSegmentTreeFp32

    tree, values = SumSegmentTreeFp32(LARGE), torch.rand(BATCH_SIZE)
    tree[torch.arange(LARGE)] = torch.rand(LARGE)

    def call() -> None:
        amounts = torch.rand(BATCH_SIZE) * tree.query(0, LARGE)
        tree[tree.scan_lower_bound(amounts).clamp_(max=LARGE - 1)] = values

    return call


def _seconds_of(call: Callable[[], object], seconds: float) -> float:
    """How long one call takes, measured for about `seconds`."""
    return 1.0 / rate(call, seconds)
