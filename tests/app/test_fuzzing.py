"""Nonsense from outside, found by hypothesis: models, checkpoints and command lines end in a sentence."""

import copy
import hashlib
import json
import math
import shutil
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save, save_file

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.app import command_line, commands, resuming, session
from mario_rl.app.signals import StopSignals
from mario_rl.app.wiring import connect
from mario_rl.emulation.choosing import choose_emulator
from mario_rl.emulation.rules import Level
from mario_rl.environment.observation import OBSERVATION
from mario_rl.errors import UserError
from mario_rl.evaluation import recording
from mario_rl.evaluation.results import Episode, Score
from mario_rl.evaluation.thorough import Trial
from mario_rl.replay import saving
from mario_rl.replay.streams import BYTES_PER_STORED_ROW
from mario_rl.settings import hardware
from mario_rl.settings.hardware import make_plan
from mario_rl.storage import checkpoints, runs
from mario_rl.storage.checkpoints import MANIFEST, NUMBERS, TENSORS, CheckpointError, CheckpointStore
from mario_rl.storage.policies import FORMAT, Policy, PolicyError, export_policy, read_policy
from mario_rl.telemetry import plots as plotting
from mario_rl.training import loop as training
from mario_rl.training.limits import Limits
from tests.small_runs import PROJECT, Lines, small_settings

SHAPE = NetworkShape((2, 2, 2), 4, 7, value_bins=4)
STATE = {name: tensor.contiguous() for name, tensor in QNetwork(SHAPE).state_dict().items()}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
# Values that are nearly right.
ODD_NUMBERS = st.sampled_from([-1, 0, 1, 2**63, 10**400, 0.5, -0.5, math.inf, math.nan, True, "1", [], {}, None])
same_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def one_sentence(error):
    message = str(error)
    assert "Traceback" not in message
    assert message.rstrip().endswith(".")


# --- Models


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    export_policy(path, Policy(QNetwork(SHAPE).state_dict(), SHAPE, "simple", 4, (Level(1, 1),)), {})
    return path


@settings(same_fixture, max_examples=150)
@given(
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=6),
    length=st.none() | st.floats(0, 1),
    tail=st.binary(max_size=20),
)
def test_a_model_file_with_any_bytes_changed_is_read_or_refused(model, edits, length, tail):
    content = bytearray(model.read_bytes())
    head = min(len(content), 4_000)  # where the names, shapes and metadata are
    for place, byte in edits:
        content[int(place * (head - 1))] = byte
    if length is not None:
        del content[int(length * len(content)) :]
    changed = model.with_name("changed.safetensors")
    changed.write_bytes(bytes(content) + tail)
    try:
        read_policy(changed)
    except PolicyError as error:
        one_sentence(error)


@settings(same_fixture, max_examples=100)
@given(
    field=st.sampled_from(["shape", "levels", "actions", "frame_skip", "format", "observation"]),
    text=st.text(max_size=30) | JSON.map(json.dumps),
    key=st.sampled_from([*NetworkShape._fields, "other"]),
    value=JSON,
)
def test_a_model_that_claims_anything_is_read_or_refused(tmp_path, field, text, key, value):
    metadata = {
        "format": FORMAT,
        "observation": OBSERVATION,
        "levels": "1-1",
        "actions": "simple",
        "frame_skip": "4",
        "shape": json.dumps(SHAPE._asdict() | {key: value}),
    }
    path = tmp_path / "model.safetensors"
    for changed in (metadata, metadata | {field: text}):
        path.write_bytes(save(STATE, {name: str(entry) for name, entry in changed.items()}))
        try:
            read_policy(path)
        except PolicyError as error:
            one_sentence(error)


# --- Checkpoints whose hashes are right and whose content is not


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Settings, a checkpoint of a run with them, and a pipeline to restore others into, again and again."""
    chosen = small_settings(
        NUM_PROCESSES=1, BUFFER_SIZE=600, WARMUP_EXPERIENCES=50, PRIORITIZED_REPLAY=True, EPISODES_PER_EPOCH=50
    )
    assert choose_emulator(chosen.play.emulator, print) == chosen.play.emulator
    folder = tmp_path_factory.mktemp("saved")
    pipeline = connect(chosen, make_plan(chosen, serial=True), Lines(), serial=True)
    pipeline.publisher.publish(0)
    pipeline.start()
    # So that there is something of everything: episodes that no epoch has counted, deaths to practise, moments of Adam.
    pipeline.source.wait_for_work(lambda: pipeline.ledger.num_episodes > 3 and pipeline.ledger.collected > 100, None)
    pipeline.ledger.add_trained(pipeline.trainer.train())
    pipeline.progress.evaluations.append(Score(0.5, 0.25, 700.0))
    pipeline.saver.save(CheckpointStore(folder, keep=1), is_best=False, should_abandon=lambda: False)
    yield chosen, folder, pipeline
    pipeline.stop()


@pytest.fixture
def changed(saved, tmp_path):
    """A function that restores the checkpoint after a change; the sentence where that is refused."""
    chosen, original, pipeline = saved

    def restore(change_numbers=None, change_tensors=None):
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(original, folder)
        (checkpoint,) = folder.glob("checkpoint-*")
        manifest = json.loads((checkpoint / MANIFEST).read_text())
        if change_numbers is not None:
            numbers = json.loads((checkpoint / NUMBERS).read_text())
            change_numbers(numbers)
            (checkpoint / NUMBERS).write_text(json.dumps(numbers))
        if change_tensors is not None:
            tensors = load_file(checkpoint / TENSORS)
            change_tensors(tensors)
            save_file(tensors, checkpoint / TENSORS)
        for name in (NUMBERS, TENSORS):
            manifest["sha256"][name] = hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
        (checkpoint / MANIFEST).write_text(json.dumps(manifest))
        run = runs.Run("changed", folder, tmp_path / "models")
        try:
            loaded = resuming.load_checkpoint(run, False, chosen, Limits(epochs=10**16))
            resuming.restore(pipeline.saver, loaded)
        except UserError as error:
            one_sentence(error)
            return str(error)
        play_a_round(pipeline, chosen.schedule, run)
        return None

    return restore


def play_a_round(pipeline, schedule, run):
    """What was restored must also be good for the main loop: a round of it, and a chunk."""
    limits = Limits(epochs=10**16, decisions=pipeline.ledger.collected + 1)
    clock = training._Clock(pipeline.progress.training_seconds)
    store = CheckpointStore(run.checkpoints, keep=1)
    reason = training._train_until_done(pipeline, schedule, limits, clock, run, store, lambda: None)
    assert "decisions are made" in reason


def draw_place(data, content):
    """A container in a JSON document and a key of it. Drawn level by level, or long lists would hide all else."""
    while True:
        key = data.draw(st.sampled_from(list(content) if isinstance(content, dict) else range(len(content))))
        if not isinstance(content[key], dict | list) or not content[key] or not data.draw(st.integers(0, 5)):
            return content, key
        content = content[key]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # NumPy 1 about numbers that do not fit; NumPy 2 refuses them
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(same_fixture, max_examples=60)
@given(data=st.data(), junk=JSON | ODD_NUMBERS, remove=st.booleans())
def test_a_checkpoint_with_any_value_changed_is_restored_or_refused(changed, data, junk, remove):
    def change(numbers):
        container, key = draw_place(data, numbers)
        if remove:
            del container[key]
        else:
            container[key] = copy.deepcopy(junk)

    changed(change)


@settings(same_fixture, max_examples=30)
@given(data=st.data(), way=st.sampled_from(["remove", "reshape", "enlarge", "cast", "spoil", "rename"]))
def test_a_checkpoint_with_any_tensor_changed_is_restored_or_refused(changed, data, way):
    def change(tensors):
        parts = sorted({name.partition(".")[0] for name in tensors})
        part = data.draw(st.sampled_from(parts))
        name = data.draw(st.sampled_from(sorted(name for name in tensors if name.partition(".")[0] == part)))
        tensor = tensors.pop(name)
        if way == "reshape":
            tensors[name] = tensor.reshape(1, *tensor.shape)
        elif way == "enlarge":
            tensors[name] = torch.cat([tensor.reshape(-1)] * 2)
        elif way == "cast":
            tensors[name] = tensor.to(torch.int16)
        elif way == "spoil":
            tensors[name] = torch.full_like(tensor, math.nan if tensor.is_floating_point() else 255)
        elif way == "rename":
            tensors[f"{name}.x"] = tensor

    changed(change_tensors=change)


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (["progress", "published_epoch"], "x", "progress.published_epoch is 'x'"),
        (["progress", "epoch"], -1, "progress.epoch is -1"),
        (["progress", "evaluated_decisions"], True, "progress.evaluated_decisions is True"),
        (["progress", "evaluations"], [[1.0, 0.5]], "progress.evaluations[0] is [1.0, 0.5]"),
        (["progress", "evaluations", 0], [1.0, 0.5, None], "progress.evaluations[0][2] is None"),
        (["progress", "training_seconds"], math.nan, "progress.training_seconds is nan"),
        (["progress", "num_episodes"], 1, "ledger and progress disagree"),
        (["ledger", "collected"], 10**16, "ledger.collected is 10000000000000000"),
        (["ledger", "trained"], 1.5, "ledger.trained is 1.5"),
        (["ledger", "new_episodes", 0, 0], "far", "ledger.new_episodes[0][0] is 'far'"),
        (["flow", "begin_trained"], None, "flow.begin_trained is None"),
        (["learner", "num_updates"], [], "learner.num_updates is []"),
        (["learner", "rate_factor"], 0, "learner.rate_factor is 0"),
        (["replay", "blocks", 0, "offset"], 1, "a block of replay cannot be unpacked"),
        (["replay", "blocks", 0, "begin"], 7, "replay.blocks[0] is not where it belongs"),
        (["replay", "blocks"], [], "replay.blocks are not all there"),
        (["replay", "counters", "first_kept", 0], 1.0, "replay.counters.first_kept[0] is 1.0"),
        (["sampler", "largest_priority"], "x", "sampler.largest_priority is 'x'"),
        (["sampler", "admitted_end", 0], 10**9, "sampler.admitted_end is behind the end of replay"),
        (["source", "episodes", "practice", "num_deaths"], "x", "source.episodes.practice.num_deaths is 'x'"),
        (["source", "explorer", "last", 0], 99, "source.explorer holds an action that there is not"),
        (["network_shape"], "x", "network_shape is 'x'"),
    ],
)
def test_a_number_that_would_trouble_training_later_is_refused_by_name(changed, place, value, named):
    def change(numbers):
        for key in place[:-1]:
            numbers = numbers[key]
        numbers[place[-1]] = value

    refusal = changed(change)
    assert refusal is not None
    assert named in refusal
    assert refusal.endswith("start a new run without --resume.")


def test_replay_in_which_nothing_can_be_drawn_is_filled_again(saved, changed):
    _, _, pipeline = saved

    def forbid_all(tensors):
        tensors["sampler.priorities"].zero_()

    collected = []

    def remember(numbers):
        numbers["sampler"]["admitted_end"] = numbers["replay"]["counters"]["written_end"]
        collected.append(numbers["ledger"]["collected"])

    assert changed(remember, forbid_all) is None
    assert pipeline.flow.begin_collected == collected[0] + pipeline.flow.rules.warmup_experiences


@pytest.mark.parametrize("name", [NUMBERS, MANIFEST])
def test_a_file_of_lists_within_lists_is_damage(saved, tmp_path, name):
    _, original, _ = saved
    shutil.copytree(original, tmp_path / "run")
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    (checkpoint / name).write_text("[" * 100_000)
    if name == NUMBERS:
        manifest = json.loads((checkpoint / MANIFEST).read_text())
        manifest["sha256"][NUMBERS] = hashlib.sha256((checkpoint / NUMBERS).read_bytes()).hexdigest()
        (checkpoint / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="is damaged \\(its content is not readable\\)"):
        CheckpointStore(tmp_path / "run", keep=1).load_newest()


def test_a_checkpoint_that_does_not_fit_into_memory_is_not_called_damaged(saved, monkeypatch):
    def too_large(_):
        raise MemoryError

    monkeypatch.setattr(checkpoints, "load_tensors", too_large)
    with pytest.raises(CheckpointError, match="checkpoint-000001 does not fit into memory: close other programs"):
        CheckpointStore(saved[1], keep=1).load_newest()


def test_a_block_of_replay_that_claims_any_size_is_not_unpacked():
    giant = zstandard.ZstdCompressor().compress(bytes(10_000 * BYTES_PER_STORED_ROW))  # 70 MB out of 2 kB
    with pytest.raises(ValueError, match="a block of replay has another size than its rows"):
        saving._unpack_rows(giant, most_rows=600)


def test_actions_in_replay_that_there_are_not_are_refused(saved, changed):
    _, original, pipeline = saved
    checkpoint = CheckpointStore(original, keep=1).load_newest()
    layout, packed = checkpoint.numbers["replay"], checkpoint.read_replay
    highest = int(pipeline.saver.replay.action.max())
    with pytest.raises(ValueError, match="replay holds an action that there is not"):
        saving.restore_replay(pipeline.saver.replay, layout, packed, 2, num_actions=highest)
    assert changed() is None


def test_an_untouched_checkpoint_is_restored(changed):
    assert changed() is None


# --- Command lines: the work itself is left out, and everything before it is done


TOO_LONG = "x" * 300
# No argument can hold a NUL; and a name of two lines may make two lines of a sentence.
TEXT = st.text(st.characters(blacklist_characters="\0\n", codec="utf-8"), max_size=10)
NUMBERS_TEXT = st.sampled_from([*"123" * 3, "0", "7", "0.5", "-1", "1e3", "inf", "nan", "9" * 5_000, ""]) | TEXT
RUNS = st.sampled_from(["run", "checkpoints/run", "./checkpoints/run/", "../run", "new", ".", TOO_LONG, "x/" * 3_000])
MODELS = st.sampled_from(
    ["model.safetensors"] * 3
    + ["other.safetensors", "letter.txt", "folder.png", "none", TOO_LONG, "x/" * 3_000, "/proc/1/mem"]
)
STEMS = st.sampled_from(["out", "folder", "none/out", "/proc/none/out", f"{TOO_LONG}/out", TOO_LONG, "letter.txt/out"])
FILES = st.builds(str.__add__, STEMS | TEXT, st.sampled_from([".mp4", ".gif", ".png", ".json", ""]))
SETTINGS = st.sampled_from(
    ["BATCH_SIZE=8", "LEVELS=[(1,1),(1,2)]", "WORLD=2", "STAGE=3", "EMULATOR=nes_py", "NUM_PROCESSES=2", "GAMMA=2",
     "ACTIONS=complex", "REPLAY_RATIO=0", "LEVELS=[[[]]]", "SEED=" + "[" * 150]
)  # fmt: skip


def options(**values):
    """Some of these options with values, in any order."""
    given = [st.builds("--{}={}".format, st.just(name.replace("_", "-")), value) for name, value in values.items()]
    return st.lists(st.one_of(given), max_size=4)


LEVEL = {"world": NUMBERS_TEXT, "stage": NUMBERS_TEXT}
LIMITS = {"epochs": NUMBERS_TEXT, "minutes": NUMBERS_TEXT, "decisions": NUMBERS_TEXT}
TRAINING = options(set=SETTINGS | TEXT, init=MODELS, resume=RUNS, seed=NUMBERS_TEXT, **LIMITS, **LEVEL)
FLAGS = st.lists(st.sampled_from(["--resume", "--serial", "--from-best", "--init=model.safetensors"]), max_size=2)
WORDS = st.lists(
    st.sampled_from(
        ["--set", "--epochs", "--minutes", "--resume", "--init", "--seed", "evaluate", "record", "plot", "--out",
         "--json", "--", "-", "BATCH_SIZE=8", "1", "0.5", "-h", "model.safetensors", "run"]
    ) | TEXT,
    max_size=6,
)  # fmt: skip
COMMAND_LINES = {
    "evaluate": st.tuples(MODELS, options(episodes=NUMBERS_TEXT, sticky=NUMBERS_TEXT, seed=NUMBERS_TEXT)),
    "evaluate --world": st.tuples(st.just("model.safetensors"), options(**LEVEL)),
    "evaluate --json": st.tuples(st.just("other.safetensors"), options(json=FILES)),
    "record": st.tuples(MODELS, options(out=FILES, start=NUMBERS_TEXT, **LEVEL)),
    "record --out": st.tuples(st.just("other.safetensors"), FILES.map("--out={}".format)),
    "plot": st.tuples(st.lists(RUNS, max_size=2), options(out=FILES)),
    "plot --out": st.tuples(st.just("run"), FILES.map("--out={}".format)),
    "train": st.tuples(FLAGS, TRAINING),
    "any": st.tuples(WORDS, st.just([])),
}


@pytest.fixture
def project(saved, tmp_path, monkeypatch):
    """A project with a run and models, as the folder that we are in; what takes time is replaced by nothing."""
    chosen, checkpoint, _ = saved
    run = runs.Run("run", tmp_path / "checkpoints" / "run", tmp_path / "models")
    shutil.copytree(checkpoint, run.checkpoints)
    runs.write_record(run, chosen.flat())
    run.metrics.write_text('{"decisions": 9, "minutes": 1, "metrics": {"learner/loss": 1}}\n')
    shutil.copy(PROJECT / "models" / "mario-1-1.safetensors", tmp_path / "model.safetensors")
    export_policy(tmp_path / "other.safetensors", Policy(STATE, SHAPE, "simple", 4, (Level(1, 1),)), {})
    (tmp_path / "letter.txt").write_text("Dear aunt")
    for suffix in (".mp4", ".png", ".json"):
        (tmp_path / f"folder{suffix}").mkdir()
    monkeypatch.chdir(tmp_path)

    def begin_work(*_arguments, **_options):
        raise WorkBeginsError

    trial = Trial("starts", [Episode(False, 300, 250.0, 60)])
    monkeypatch.setattr(commands, "try_thoroughly", lambda *_: [trial])
    monkeypatch.setattr(commands, "choose_emulator", lambda *_: "fast")
    monkeypatch.setattr(recording, "ColourGame", begin_work)
    monkeypatch.setattr(session, "_draw_maps", begin_work)
    monkeypatch.setattr(plotting, "_draw", lambda _: SimpleNamespace(savefig=lambda file, **_: file.write(b"x")))
    monkeypatch.setattr(session, "choose_emulator", lambda wish, _: wish)
    monkeypatch.setattr(hardware, "prepare", lambda _: None)
    monkeypatch.setattr(hardware, "_measure_bfloat16", lambda: 1.0)
    monkeypatch.setattr(session, "connect", begin_work)
    return tmp_path


class WorkBeginsError(Exception):
    """All checks are passed."""


def flat(parts):
    for part in parts:
        yield from [part] if isinstance(part, str) else part


@pytest.mark.parametrize("command", COMMAND_LINES)
def test_any_command_line_starts_its_work_or_ends_with_sentences(project, capsys, command):
    ends = Counter()

    @settings(max_examples=60)
    @given(parts=COMMAND_LINES[command])
    def try_one(parts):
        words = [*(word for word in command.split()[:1] if word not in ("any", "train")), *flat(parts)]
        try:
            code = command_line.main(project, StopSignals(), words)
            lines = capsys.readouterr().err.split("\n")[:-1]
            assert (code, bool(lines)) in ((0, False), (2, True)), lines
            assert all(line.startswith("error: ") and line.endswith((".", "?", "txt")) for line in lines), lines
        except WorkBeginsError:
            code = 0
        except SystemExit as end:  # argparse's own way out
            code = end.code
            wants_help = any(word in ("-h", "--help") for word in words)
            assert code == 2 or (code == 0 and wants_help)
        finally:
            capsys.readouterr()
            while runs._claims:  # as at the end of the process
                runs._claims.pop().close()
        ends[code] += 1

    try_one()
    assert ends[0], "all were refused"
    assert ends[2], "none was refused"
    torch.set_num_threads(1)
