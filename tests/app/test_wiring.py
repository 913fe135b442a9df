"""The whole pipeline in this process: an exact resume, weights that reach collectors, flow control."""

import json
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from mario_rl.app.wiring import connect
from mario_rl.emulation.choosing import choose_emulator
from mario_rl.emulation.rules import Level
from mario_rl.evaluation.results import Score
from mario_rl.searching.search import LevelSearch
from mario_rl.settings.hardware import make_plan
from mario_rl.storage.checkpoints import CheckpointStore
from mario_rl.storage.runs import Run
from mario_rl.telemetry.console import Console
from mario_rl.telemetry.metrics import JsonLinesSink, TensorBoardSink
from mario_rl.training.limits import LimitRules, Limits
from mario_rl.training.loop import train
from tests.rules import PLAY
from tests.small_runs import small_settings


def _train(folder, settings, limits, resume=False, serial=True, graph=None):
    """One session of training; the pipeline as it ended."""
    run = Run("test", folder / "checkpoints", folder / "models")
    store = CheckpointStore(run.checkpoints, keep=2)
    console = Console()
    assert choose_emulator(settings.play.emulator, console.line) == settings.play.emulator  # compiled, as in a session
    sinks = [TensorBoardSink(run.tensorboard), JsonLinesSink(run.metrics)]
    learns = limits.stopping_rule is not None
    plan = make_plan(settings, serial=serial)
    pipeline = connect(settings, plan, console, sinks, graph, serial=serial, ends_when_learned=learns)
    missing = pipeline.saver.restore(store.load_newest()) if resume else []
    pipeline.outcome = train(pipeline, settings.schedule, limits, run, store)
    pipeline.reporter.close()
    assert pipeline.outcome.failure is None
    return pipeline, missing


def _search():
    """The graph of a short search of 1-1, which finds its flag."""
    with closing(LevelSearch(PLAY, Level(1, 1), 1, 3, 2)) as search:
        while search.figures.start_distance is None:
            search.play_round()
    return search.graph


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    yield {"LEARNER_THREADS": 1}
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "variant",
    [
        {"PRIORITIZED_REPLAY": True, "VALUE_HEAD": "quantiles", "VALUE_BINS": 8},  # which has the most to restore
        {"PROGRESS": "map", "PRACTICE_SHARE": 0.9, "RESCUE_SHARE": 0.9},
        pytest.param({}, marks=pytest.mark.long),
    ],
)
def test_a_resumed_serial_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, one_thread, variant):
    # Few updates and frequent publications: at the interruption the collector acts with older weights than the newest,
    # and a publication is due that belongs before the next chunk.
    settings = small_settings(
        ENVS_PER_PROCESS=3,
        REPLAY_RATIO=0.5,
        PUBLISH_MAX_DECISIONS=60,
        MODEL_UPDATE_FREQUENCY=100,
        **one_thread,
        **variant,
    )

    def search():  # anew for each run, which adds to what it is given
        return _search() if settings.task.progress == "map" else None

    whole, _ = _train(tmp_path / "whole", settings, Limits(epochs=1_000, decisions=400), graph=search())
    _train(tmp_path / "parts", settings, Limits(epochs=1_000, decisions=200), graph=search())
    parts, missing = _train(tmp_path / "parts", settings, Limits(epochs=1_000, decisions=400), resume=True)
    assert missing == []
    assert whole.learner.num_updates == parts.learner.num_updates > 5
    assert vars(whole.progress) | {"training_seconds": 0} == vars(parts.progress) | {"training_seconds": 0}
    assert whole.ledger.state() == parts.ledger.state()
    assert whole.flow.state() == parts.flow.state()
    for name, tensor in whole.learner.tensors().items():
        assert torch.equal(tensor, parts.learner.tensors()[name]), name
    for name, tensor in whole.source.tensors().items():
        assert torch.equal(tensor, parts.source.tensors()[name]), name
    assert whole.source.state() == parts.source.state()
    assert whole.saver.sampler.state() == parts.saver.sampler.state()
    for name, tensor in whole.saver.sampler.tensors().items():
        assert torch.equal(tensor, parts.saver.sampler.tensors()[name]), name
    assert torch.equal(whole.saver.replay.frames, parts.saver.replay.frames)
    for column in ("action", "reward", "marks", "history", "written_end"):
        assert np.array_equal(getattr(whole.saver.replay, column), getattr(parts.saver.replay, column)), column


def test_a_resumed_run_may_count_its_epochs_otherwise(tmp_path, one_thread):
    first, _ = _train(tmp_path, small_settings(EPISODES_PER_EPOCH=3, **one_thread), Limits(epochs=1))
    second, _ = _train(tmp_path, small_settings(EPISODES_PER_EPOCH=1, **one_thread), Limits(epochs=2), resume=True)
    assert (first.progress.epoch, second.progress.epoch) == (1, 2)
    assert second.progress.num_episodes == 4


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_resume_without_replay_warms_up_again_and_trains_on(tmp_path, one_thread, prioritized):
    settings = small_settings(CHECKPOINT_REPLAY=False, PRIORITIZED_REPLAY=prioritized, **one_thread)
    first, _ = _train(tmp_path, settings, Limits(epochs=1_000, decisions=300))
    updates = first.learner.num_updates
    assert updates > 0
    second, missing = _train(tmp_path, settings, Limits(epochs=1_000, decisions=440), resume=True)
    assert any("replay starts empty" in sentence for sentence in missing)
    assert second.learner.num_updates > updates
    if prioritized:  # priorities of rows that are gone would hide those that come
        assert (second.saver.sampler._admitted_end <= second.saver.replay.written_end).all()


def test_the_replay_ratio_is_kept_in_parallel_and_nothing_is_dropped(tmp_path):
    settings = small_settings(REPLAY_RATIO=2.0, PRACTICE_SHARE=0.0)  # practice is not counted among the episodes
    pipeline, _ = _train(tmp_path, settings, Limits(epochs=1_000, decisions=500), serial=False)
    collected, trained = pipeline.ledger.collected, pipeline.ledger.trained
    warmup, slack = settings.flow.warmup_experiences, pipeline.flow.slack
    round_size = settings.learning.sample_size
    assert trained <= 2.0 * (collected - warmup) + round_size
    # Collectors stop within their slack (and the chunk that each had begun) of what training allows.
    assert collected <= warmup + trained / 2.0 + slack + 2 * settings.collecting.chunk_experiences
    assert pipeline.source.consolidation.figures.drops == 0
    # Every decision that was counted lies in replay, and so does every final picture.
    rows = int(pipeline.saver.replay.written_end.sum())
    assert rows == collected + pipeline.ledger.num_episodes
    assert rows % settings.collecting.chunk_experiences == 0


def test_collectors_act_with_the_learners_weights_and_statistics(tmp_path, one_thread):
    settings = small_settings(**one_thread)
    pipeline, _ = _train(tmp_path, settings, Limits(epochs=1_000, decisions=300))
    pipeline.publisher.publish(-2)  # whatever was published last, publish again
    collector = pipeline.source._collector
    collector.take_news()
    assert collector.weights_version == pipeline.publisher.version > 1
    for name, tensor in pipeline.learner.networks.averaged.state_dict().items():
        assert torch.equal(tensor, collector._weights[name]), name
    assert not torch.equal(collector._weights["features.1.running_mean"], torch.zeros(4))


@pytest.mark.parametrize("serial", [True, pytest.param(False, marks=pytest.mark.long)])
def test_evaluations_are_made_kept_and_end_the_run_when_one_is_good_enough_and_confirmed(tmp_path, serial):
    settings = small_settings(EVALUATION_DECISIONS=80, STOP_AT_CLEAR_RATE=0.0, STOP_AT_STICKY_CLEAR_RATE=0.0)
    limits = Limits(epochs=100_000, decisions=200_000, stopping_rule=settings.limits)  # anything is good enough
    pipeline, _ = _train(tmp_path, settings, limits, serial=serial)
    assert "the level is learned" in pipeline.outcome.reason
    assert len(pipeline.progress.evaluations) == 1
    rows = [json.loads(line) for line in (tmp_path / "checkpoints" / "metrics.jsonl").read_text().splitlines()]
    (evaluated,) = [row for row in rows if "evaluation/clear_rate" in row["metrics"]]
    (score,) = pipeline.progress.evaluations
    assert evaluated["metrics"]["evaluation/distance"] == pytest.approx(score.mean_distance, rel=1e-5)
    assert evaluated["metrics"]["confirmation/distance"] > 0
    assert evaluated["decisions"] >= 80
    card = json.loads((tmp_path / "models" / "test-best.json").read_text())
    assert card["mean_distance"] == pytest.approx(score.mean_distance, abs=0.1)
    assert card["decisions"] == evaluated["decisions"]
    assert card["unseen_clear_rate"] == 0.0


def test_the_stopping_rule_needs_a_good_evaluation_and_its_confirmation():
    rule = LimitRules(max_epochs=1, stop_at_clear_rate=0.95, stop_at_sticky_clear_rate=0.6)
    assert rule.goal.is_possible
    assert not replace(rule, stop_at_clear_rate=2.0).goal.is_possible  # never ends by it
    limits = Limits(epochs=1, stopping_rule=rule)
    good, poor, shaky = Score(1.0, 0.7, 3_160.0), Score(0.9, 0.7, 3_000.0), Score(1.0, 0.5, 3_160.0)
    assert limits.learned(good, None) is None
    assert limits.learned(good, poor) is None
    assert limits.learned(good, shaky) is None
    assert limits.learned(shaky, good) is None
    assert "100% of the starts" in limits.learned(good, good)
    assert Limits(epochs=1).learned(good, good) is None
