"""Builds and connects everything, in one function. Learner process only.

This is the one place that knows all settings and all parts. A variant (another source, sampler, trainer or evaluator)
is a file of its own and one branch here.
"""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.context import SpawnContext
from typing import Any

import numpy as np
import torch

from mario_rl.accounts.flow import FlowControl, slack_for
from mario_rl.accounts.ledger import Ledger
from mario_rl.agent.exploration import EpsilonLadder
from mario_rl.channels.weight_slots import WeightSlots
from mario_rl.collecting.collector import CollectorSetup
from mario_rl.collecting.parallel_source import ParallelSource
from mario_rl.collecting.serial_source import SerialSource
from mario_rl.collecting.source import ExperienceSource
from mario_rl.evaluation.evaluator import Evaluator, EvaluatorSetup
from mario_rl.evaluation.evaluator_process import EvaluatorProcess
from mario_rl.evaluation.inline_evaluator import InlineEvaluator
from mario_rl.learning.learner import Learner
from mario_rl.learning.publishing import WeightPublisher
from mario_rl.learning.sampling import SampleAhead, SampleInline
from mario_rl.learning.trainers import LoneTrainer, Trainer
from mario_rl.learning.worker_team import WorkerTeam
from mario_rl.mapping.graph import CellGraph
from mario_rl.mapping.keeper import MapKeeper
from mario_rl.mapping.level_map import LevelMap
from mario_rl.replay.prioritized import PrioritizedSampler
from mario_rl.replay.sampler import Sampler
from mario_rl.replay.streams import ReplayStreams
from mario_rl.replay.uniform import UniformSampler
from mario_rl.saved_part import SavedPart
from mario_rl.settings.hardware import HardwarePlan
from mario_rl.settings.settings import Settings
from mario_rl.storage.policies import Policy
from mario_rl.telemetry.console import Console
from mario_rl.telemetry.metrics import Metrics, MetricSink
from mario_rl.training.pipeline import Pipeline
from mario_rl.training.progress import Progress
from mario_rl.training.recovery import Recovery
from mario_rl.training.reporting import Reporter
from mario_rl.training.saving import RunSaver

# Sticky actions and starts of all evaluations during training; `evaluate` draws others unless it is told this one.
EVALUATION_SEED = 20_000


def connect(
    settings: Settings,
    plan: HardwarePlan,
    console: Console,
    sinks: Sequence[MetricSink] = (),
    graph: CellGraph | None = None,
    *,
    serial: bool,
    ends_when_learned: bool = False,
) -> Pipeline:
    """Build every part and connect them. Nothing plays or trains until `start`; helper threads wait for work.

    `graph` is what a search has found, with PROGRESS = "map"; a resumed run brings its own.
    """
    play, task, rules, shape = settings.play, settings.task, settings.collecting, settings.network_shape
    num_collectors = 1 if serial else rules.num_processes
    num_streams = num_collectors * rules.envs_per_process
    network_seed, sampler_seed, *collector_seeds = np.random.SeedSequence(settings.run.seed).spawn(2 + num_collectors)
    torch.manual_seed(int(network_seed.generate_state(1, np.uint64)[0] >> np.uint64(1)))
    torch.set_num_threads(plan.threads_each)
    context = multiprocessing.get_context("spawn")

    learner = Learner(shape, settings.learning, plan.execution)
    weights = learner.networks.averaged.state_dict()
    slots = WeightSlots(context, {name: tensor.cpu() for name, tensor in weights.items()})
    publisher = WeightPublisher(slots, learner.networks.averaged, inline=serial)

    replay = ReplayStreams(num_streams, settings.replay.buffer_size)
    # Each worker draws for itself; the first one's sampler is the one that a checkpoint keeps.
    seeds = [sampler_seed, *sampler_seed.spawn(plan.workers - 1)]
    samplers = [_make_sampler(settings, replay, np.random.default_rng(seed)) for seed in seeds]
    trainer = _make_trainer(plan, learner, samplers, serial=serial)

    ledger, progress = Ledger(), Progress()
    slack = slack_for(rules.experience_batch_size, rules.chunk_experiences, num_collectors)
    flow = FlowControl(settings.flow, slack)

    keeper = map_slots = None
    if task.progress == "map":
        num_levels = len(task.levels_played)
        map_slots = WeightSlots(context, LevelMap(num_levels).tensors)
        keeper = MapKeeper(graph or CellGraph(), map_slots, num_levels, num_streams)
        keeper.publish()

    ladder = EpsilonLadder(settings.exploration, num_streams)
    setups = [
        CollectorSetup(number, rules, play, task, settings.exploration, shape, ladder, seed, map_slots)
        for number, seed in enumerate(collector_seeds)
    ]
    source = _make_source(context, setups, slots, replay, ledger, console, keeper, serial=serial)
    goal = settings.limits.goal if ends_when_learned and settings.limits.goal.is_possible else None
    evaluator = _make_evaluator(
        context,
        EvaluatorSetup(play, task.levels_played, shape, EVALUATION_SEED, goal),
        ledger,
        source,
        serial=serial,
    )

    def exploration_metrics() -> Metrics:
        return {"exploration/epsilon": float(ladder.epsilons(ledger.collected).mean())}

    kept: dict[str, SavedPart] = {"learner": learner, "progress": progress, "source": source}
    measured: list[Any] = [learner, trainer, source, replay, samplers[0], ledger, publisher, progress]
    if keeper is not None:
        kept["map"] = keeper
        measured.append(keeper)
    reporter = Reporter(
        console, sinks, [*(part.metrics for part in measured), exploration_metrics], ledger, progress, settings.locks
    )
    saver = RunSaver(
        settings.saving,
        Policy({}, shape, play.actions, play.frame_skip, task.levels_played),
        kept,
        ledger,
        flow,
        samplers[0],
        replay,
        rules.envs_per_process,
    )
    return Pipeline(
        source=source,
        learner=learner,
        trainer=trainer,
        publisher=publisher,
        evaluator=evaluator,
        ledger=ledger,
        flow=flow,
        progress=progress,
        recovery=Recovery(settings.recovery, learner, publisher, ledger),
        saver=saver,
        reporter=reporter,
    )


def _make_source(
    context: SpawnContext,
    setups: list[CollectorSetup],
    slots: WeightSlots,
    replay: ReplayStreams,
    ledger: Ledger,
    console: Console,
    keeper: MapKeeper | None,
    *,
    serial: bool,
) -> ExperienceSource:
    if serial:
        return SerialSource(context, setups[0], slots, replay, ledger, console.line, keeper)
    return ParallelSource(context, setups[0].collecting, setups, slots, replay, ledger, console.line, keeper)


def _make_sampler(settings: Settings, replay: ReplayStreams, rng: np.random.Generator) -> Sampler:
    if settings.priorities.prioritized_replay:
        return PrioritizedSampler(replay, settings.sampling, rng, settings.priorities)
    return UniformSampler(replay, settings.sampling, rng)


def _make_trainer(plan: HardwarePlan, learner: Learner, samplers: list[Sampler], *, serial: bool) -> Trainer:
    size = learner.rules.sample_size
    if plan.workers > 1:
        return WorkerTeam(learner, [SampleInline(sampler, size) for sampler in samplers], plan.threads_each)
    if serial:
        return LoneTrainer(learner, SampleInline(samplers[0], size))
    targets = learner.targets_ahead() if plan.targets_ahead else None
    return LoneTrainer(learner, SampleAhead(samplers[0], size, plan.device.type == "cuda", targets))


def _make_evaluator(
    context: SpawnContext, setup: EvaluatorSetup, ledger: Ledger, source: ExperienceSource, *, serial: bool
) -> Evaluator:
    if serial:
        return InlineEvaluator(setup, source.is_stopping)
    return EvaluatorProcess(context, setup, ledger.wake)
