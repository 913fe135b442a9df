"""Nonsense from outside, found by hypothesis: models, checkpoints and command lines end in a sentence."""

import copy
import hashlib
import json
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from mario_rl import command_line, runs, session
from mario_rl.checkpoints import MANIFEST, NUMBERS, CheckpointStore
from mario_rl.emulation.choosing import choose_emulator
from mario_rl.emulation.rules import Level
from mario_rl.errors import UserError
from mario_rl.hardware import make_plan
from mario_rl.network import NetworkShape, QNetwork
from mario_rl.pipeline import connect, network_shape
from mario_rl.policies import FORMAT, OBSERVATION, Policy, PolicyError, export_policy, read_policy
from mario_rl.stop_signals import StopSignals
from mario_rl.training import Limits
from tests.small_runs import PROJECT, Lines, small_settings

SHAPE = NetworkShape((2, 2, 2), 4, 7, value_bins=4)
STATE = {name: tensor.contiguous() for name, tensor in QNetwork(SHAPE).state_dict().items()}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
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
    chosen = small_settings(NUM_PROCESSES=1, BUFFER_SIZE=600, WARMUP_EXPERIENCES=50)
    assert choose_emulator(chosen.emulator, print) == chosen.emulator
    folder = tmp_path_factory.mktemp("saved")
    pipeline = connect(chosen, make_plan(chosen, serial=True), Lines(), serial=True)
    pipeline.publisher.publish(0)
    pipeline.start()
    pipeline.source.wait_for_work(lambda: pipeline.ledger.collected > 40, None)
    pipeline.save(CheckpointStore(folder, keep=1), lambda: False)
    yield chosen, folder, pipeline
    pipeline.stop()


def paths_into(content, path=()):
    """The way to every value of a JSON document."""
    yield path
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from paths_into(value, (*path, key))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # NumPy 1 about numbers that do not fit; NumPy 2 refuses them
@settings(same_fixture, max_examples=60)
@given(data=st.data(), junk=JSON, remove=st.booleans())
def test_a_checkpoint_with_any_value_changed_is_restored_or_refused(saved, tmp_path, data, junk, remove):
    chosen, original, pipeline = saved
    folder = tmp_path / "changed"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder)
    (checkpoint,) = folder.glob("checkpoint-*")
    numbers = json.loads((checkpoint / NUMBERS).read_text())
    paths = [path for path in paths_into(numbers) if path]
    path = data.draw(st.sampled_from(paths))
    parent = numbers
    for key in path[:-1]:
        parent = parent[key]
    if remove:
        del parent[path[-1]]
    else:
        parent[path[-1]] = copy.deepcopy(junk)
    content = json.dumps(numbers).encode()
    (checkpoint / NUMBERS).write_bytes(content)
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    manifest["sha256"][NUMBERS] = hashlib.sha256(content).hexdigest()
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))

    run = runs.Run("changed", folder, tmp_path / "models")
    try:
        loaded = session._load_checkpoint(run, False, chosen, network_shape(chosen), Limits(epochs=10**6))
    except UserError as error:
        one_sentence(error)
        return
    try:
        session._restore(pipeline, loaded)
    except UserError as error:
        one_sentence(error)


# --- Command lines


WORDS = st.sampled_from(
    ["--set", "--epochs", "--minutes", "--decisions", "--resume", "--from-best", "--init", "--seed", "--world",
     "--stage", "--serial", "evaluate", "record", "plot", "--out", "--episodes", "--sticky", "--json", "--", "-",
     "BATCH_SIZE=8", "1", "0.5"]
)  # fmt: skip


@settings(same_fixture, max_examples=150)
@given(words=st.lists(WORDS | st.text(max_size=10), max_size=6))
def test_any_command_line_ends_with_a_sentence(capsys, monkeypatch, words):
    monkeypatch.setattr(session, "train", lambda *_: pytest.fail("a run was started"))
    arguments = [*words, "--set=BATCH_SIZE=nonsense"]  # so that nothing starts, whatever else is right
    code = None
    try:
        code = command_line.main(PROJECT, StopSignals(), arguments)
    except SystemExit as end:  # argparse's own way out
        code = end.code
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    wants_help = any(word in ("-h", "--help") for word in words)
    assert code == 2 or (wants_help and code == 0)
    assert errors or wants_help
    torch.set_num_threads(1)
