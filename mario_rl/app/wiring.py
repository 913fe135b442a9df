"""Builds and connects everything, in one function; and saves and restores the whole of it. Learner process only."""

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

from mario_rl.accounts.flow import FlowControl
from mario_rl.accounts.ledger import Ledger
from mario_rl.agent.exploration import EpsilonLadder
from mario_rl.agent.network import NetworkShape
from mario_rl.channels.experience_ring import RingShape
from mario_rl.channels.weight_slots import WeightSlots
from mario_rl.collecting.collector import CollectorSetup
from mario_rl.collecting.consolidation import ProcessorFigures
from mario_rl.collecting.sources import ParallelSource, SerialSource
from mario_rl.collecting.supervisor import RestartRules
from mario_rl.environment.actions import ACTION_SETS
from mario_rl.environment.episodes import TaskRules
from mario_rl.evaluation.evaluator import (
    STICKY_FROM_CLEAR_RATE,
    EvaluatorProcess,
    EvaluatorSetup,
    InlineEvaluator,
)
from mario_rl.learning.learner import Execution, Learner, LearningRules
from mario_rl.learning.publishing import WeightPublisher
from mario_rl.learning.sampling import SampleAhead, SampleInline
from mario_rl.learning.workers import LoneWorker, WorkerTeam
from mario_rl.replay.prioritized import PrioritizedSampler
from mario_rl.replay.sampler import NothingToDrawError, SampleBuffer, Sampler
from mario_rl.replay.streams import ReplayStreams
from mario_rl.replay.uniform import UniformSampler
from mario_rl.settings.hardware import HardwarePlan
from mario_rl.settings.schema import Settings
from mario_rl.storage.checkpoints import Checkpoint, CheckpointStore, restore_replay
from mario_rl.storage.checks import check_numbers, check_optimizer, check_sampler, check_source
from mario_rl.telemetry.console import Console, processor_line

# Sticky actions and starts of all evaluations during training; `evaluate` draws others unless it is told this one.
EVALUATION_SEED = 20_000


@dataclass
class Progress:
    """Where the main loop is; it continues across a resume."""

    epoch: int = 0
    num_episodes: int = 0  # that belong to finished epochs
    published_epoch: int = 0
    published_decisions: int = 0
    training_seconds: float = 0.0  # of earlier sessions
    best_distance: int = 0  # of a single episode
    num_clears: int = 0
    evaluated_decisions: int = 0  # when an evaluation was last asked for
    # (clear rate, sticky clear rate, mean distance) of every evaluation; the best policy is the one with the largest
    evaluations: list[list[float]] = field(default_factory=list)
    has_unsaved_best: bool = False  # the last of them was the best so far, and no checkpoint followed yet


@dataclass
class Pipeline:
    """All parts of a run, connected."""

    settings: Settings
    network_shape: NetworkShape
    replay: ReplayStreams
    sampler: Sampler
    learner: Learner
    trainer: LoneWorker | WorkerTeam
    ledger: Ledger
    flow: FlowControl
    publisher: WeightPublisher
    slots: WeightSlots
    source: ParallelSource | SerialSource
    evaluator: EvaluatorProcess | InlineEvaluator
    ladder: EpsilonLadder
    progress: Progress

    def save(self, store: CheckpointStore, should_abandon: Callable[[], bool]) -> None:
        """Write a checkpoint of everything."""
        settings, is_best = self.settings, self.progress.has_unsaved_best
        self.trainer.settle()
        numbers: dict[str, Any] = {
            "learner": self.learner.numbers(),
            "ledger": self.ledger.state(),
            "flow": self.flow.state(),
            "progress": vars(self.progress) | {"has_unsaved_best": False},
            "sampler_rng": self.sampler.rng.bit_generator.state,
            "sampler": self.sampler.state(),
            "source": self.source.state(),
            "network_shape": self.network_shape._asdict(),
        }
        tensors = self.learner.tensors() | self.source.tensors() | self.sampler.tensors()
        tensors["torch_rng"] = torch.get_rng_state()
        replay = self.replay if settings.checkpoint_replay else None
        budget = settings.replay_save_seconds
        store.save(tensors, numbers, replay, budget, is_best=is_best, should_abandon=should_abandon)
        self.progress.has_unsaved_best = False

    def restore(self, checkpoint: Checkpoint) -> list[str]:
        """Continue from a checkpoint, before anything runs; what could not be restored, in words.

        ValueError, TypeError, LookupError and the like where it holds something else than this version saves: all of
        it is looked at here, since a part that stumbles later does so when processes run already.
        """
        numbers, tensors = checkpoint.numbers, checkpoint.tensors
        self._check(numbers, tensors)
        self.learner.load(tensors, numbers["learner"])
        self.ledger.load_state(numbers["ledger"])
        self.flow.load_state(numbers["flow"], self.ledger.collected, self.ledger.trained)
        known = {entry.name for entry in fields(Progress)}  # a checkpoint of an older version may hold others
        self.progress = Progress(**{name: value for name, value in numbers["progress"].items() if name in known})
        missing = []
        restored = restore_replay(checkpoint, self.replay, self.settings.envs_per_process)
        if restored:
            sampler = numbers.get("sampler", {})
            check_sampler(sampler, tensors, self.sampler.state(), self.replay, self.network_shape.num_actions)
            self.sampler.load(sampler, tensors)
        is_warm = self.ledger.collected >= self.flow.begin_collected
        if self.replay.num_rows < min(self.flow.warmup, self.ledger.collected) or (is_warm and not self._can_draw()):
            self.flow.warm_up_again(self.ledger.collected, self.ledger.trained)
            state = "holds few experiences" if restored else "starts empty"
            missing.append(f"replay {state} and is filled again before learning goes on")
        if restored:  # once more, as it was before the draw; priorities belong to the rows they were given to
            self.sampler.load(sampler, tensors)
        self.sampler.rng.bit_generator.state = numbers["sampler_rng"]
        torch.set_rng_state(tensors["torch_rng"])
        if self.source.load(numbers["source"], tensors):
            self.publisher.republish({name: tensors[f"acting.{name}"] for name in self.publisher.snapshot})
        else:
            missing.append("every emulator starts a new episode")
            for stream in range(self.replay.num_streams):
                self.replay.interrupt(stream)
        return missing

    def _check(self, numbers: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Compare all that can be known before anything is restored with what would be saved now."""
        expected = {
            "learner": self.learner.numbers(),
            "ledger": self.ledger.state(),
            "flow": self.flow.state(),
            "progress": vars(Progress()),
        }
        check_numbers(numbers, expected)
        check_optimizer(tensors, list(self.learner.online.parameters()))
        check_source(numbers["source"], self.source.state(), self.network_shape.num_actions)

    def _can_draw(self) -> bool:
        """Whether replay holds anything to learn from. This draws: what the sampler knows must be loaded afterwards."""
        try:
            self.sampler.sample(SampleBuffer(1, prioritized=self.settings.prioritized_replay))
        except NothingToDrawError:
            return False
        return True

    def stop(self) -> None:
        """Stop all processes and threads; safe to call once, in any state."""
        self.evaluator.stop()
        self.source.stop()
        self.trainer.close()
        self.publisher.close()

    def start(self) -> None:
        """Start all processes and threads."""
        self.evaluator.start()
        self.source.start()

    def kill(self) -> None:
        """End all processes at once."""
        self.evaluator.kill()
        self.source.kill()


def network_shape(settings: Settings) -> NetworkShape:
    """The network that the settings ask for."""
    low, high = settings.value_range
    actions = len(ACTION_SETS[settings.actions])
    return NetworkShape(
        settings.network_channels, settings.hidden_units, actions, low, high, settings.value_bins, settings.value_head
    )


def learning_rules(s: Settings) -> LearningRules:
    """How the settings want it to learn."""
    return LearningRules(
        batch_size=s.batch_size,
        accumulation_steps=s.gradient_accumulation_steps,
        steps_per_sample=s.training_steps_per_sample,
        learning_rate=s.learning_rate,
        final_learning_rate=s.final_learning_rate,
        learning_rate_decay_decisions=s.learning_rate_decay_decisions,
        adam_epsilon=s.adam_epsilon,
        max_gradient_norm=s.max_gradient_norm,
        target_update=s.target_update,
        target_update_interval=s.target_update_interval,
        target_tau=s.target_tau,
        weight_averaging=s.weight_averaging,
        prioritized=s.prioritized_replay,
    )


def connect(settings: Settings, plan: HardwarePlan, console: Console, *, serial: bool) -> Pipeline:
    """Build every part and connect them. Nobody plays or trains until `start`; helper threads wait for work."""
    s = settings
    num_collectors = 1 if serial else s.num_processes
    num_streams = num_collectors * s.envs_per_process
    network_seed, sampler_seed, *collector_seeds = np.random.SeedSequence(s.seed).spawn(2 + num_collectors)
    torch.manual_seed(int(network_seed.generate_state(1, np.uint64)[0] >> np.uint64(1)))
    torch.set_num_threads(plan.threads_each)
    context = multiprocessing.get_context("spawn")

    task = TaskRules(
        levels=s.levels_played,
        actions=s.actions,
        emulator=s.emulator,
        frame_skip=s.frame_skip,
        noop_start_max_frames=s.noop_start_max_frames,
        no_progress_decisions=s.no_progress_decisions,
        reward_scale=s.reward_scale,
        flag_bonus=s.flag_bonus,
        practice_share=s.practice_share,
    )
    shape = network_shape(s)
    rules = learning_rules(s)
    execution = Execution(plan.device, plan.autocast_dtype, plan.compile_mode, plan.num_gpus)
    learner = Learner(shape, rules, execution)
    slots = WeightSlots(context, {name: tensor.cpu() for name, tensor in learner.online.state_dict().items()})
    publisher = WeightPublisher(slots, learner.averaged, inline=serial)

    replay = ReplayStreams(num_streams, s.buffer_size)
    # Each worker draws for itself; the first one's generator is the one that a checkpoint keeps.
    seeds = [sampler_seed, *sampler_seed.spawn(plan.workers - 1)]
    samplers = [_make_sampler(s, replay, np.random.default_rng(seed)) for seed in seeds]
    trainer = _make_trainer(s, plan, learner, samplers, serial=serial)

    ledger = Ledger()
    # More than can be on its way (an uncommitted batch, two chunks of every collector), or both sides could wait.
    slack = s.experience_batch_size + 2 * num_collectors * s.chunk_experiences
    flow = FlowControl(s.replay_ratio, s.warmup_experiences, slack)

    ladder = EpsilonLadder(num_streams, s.epsilon_ladder_low, s.epsilon_ladder_high, s.epsilon_decay_decisions)
    setups = [
        CollectorSetup(
            number=number,
            num_envs=s.envs_per_process,
            chunk_decisions=s.chunk_decisions,
            task=task,
            network=shape,
            ladder=ladder,
            explore_right_probability=s.explore_right_probability,
            explore_max_hold=s.explore_max_hold,
            explore_sticky_probability=s.explore_sticky_probability,
            when_full=s.when_ring_full,
            seed=collector_seeds[number],
        )
        for number in range(num_collectors)
    ]

    evaluator_setup = EvaluatorSetup(task, shape, EVALUATION_SEED, min(STICKY_FROM_CLEAR_RATE, s.stop_at_clear_rate))
    evaluator: EvaluatorProcess | InlineEvaluator = (
        InlineEvaluator(evaluator_setup, lambda: source.is_stopping())
        if serial
        else EvaluatorProcess(context, evaluator_setup, ledger.wake)
    )

    def on_figures(figures: ProcessorFigures) -> None:
        console.line(processor_line(*figures))

    source: ParallelSource | SerialSource
    if serial:
        source = SerialSource(context, setups[0], slots, replay, ledger, on_figures, s.processor_log_seconds)
    else:
        ring_shape = RingShape(s.ring_slots, s.envs_per_process, s.chunk_decisions)
        source = ParallelSource(
            context,
            setups,
            ring_shape,
            slots,
            replay,
            ledger,
            s.experience_batch_size,
            RestartRules(s.max_restarts_per_hour, s.hang_seconds),
            console.line,
            on_figures,
            s.processor_log_seconds,
        )
    return Pipeline(
        settings=s,
        network_shape=shape,
        replay=replay,
        sampler=samplers[0],
        learner=learner,
        trainer=trainer,
        ledger=ledger,
        flow=flow,
        publisher=publisher,
        slots=slots,
        source=source,
        evaluator=evaluator,
        ladder=ladder,
        progress=Progress(),
    )


def _make_sampler(s: Settings, replay: ReplayStreams, rng: np.random.Generator) -> Sampler:
    if not s.prioritized_replay:
        return UniformSampler(replay, s.n_step, s.gamma, s.picture_shift, rng)
    return PrioritizedSampler(
        replay,
        s.n_step,
        s.gamma,
        s.picture_shift,
        rng,
        exponent=s.priority_exponent,
        correction=s.priority_correction,
        correction_decisions=s.priority_correction_decisions,
    )


def _make_trainer(
    s: Settings, plan: HardwarePlan, learner: Learner, samplers: list[Sampler], *, serial: bool
) -> LoneWorker | WorkerTeam:
    size, prioritized = s.batch_size * s.training_steps_per_sample, s.prioritized_replay
    if plan.workers > 1:
        return WorkerTeam(learner, [SampleInline(sampler, size) for sampler in samplers], plan.threads_each)
    if serial:
        return LoneWorker(learner, SampleInline(samplers[0], size, prioritized))
    goals = learner.goals_ahead() if plan.goals_ahead else None
    ahead = SampleAhead(samplers[0], size, plan.device.type == "cuda", goals, prioritized)
    return LoneWorker(learner, ahead)
