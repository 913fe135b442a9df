import ast
import importlib.util
import io
import math
import os
import re
import tokenize
import types
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import config_optimized
from mario_rl.emulation.choosing import advise_more_collectors
from mario_rl.settings.choosing import (
    ChosenSettings,
    SettingsError,
    choose_resumed_settings,
    choose_settings,
    parse_assignments,
)
from mario_rl.settings.config_file import read_config_module
from mario_rl.settings.settings import NAMES

CONFIG_FILE = Path(config_optimized.__file__)
VALUES, OVERRIDES = read_config_module(config_optimized)


def choose(*assignments: str, gpu: bool = True, overrides: dict | None = None, **changes: object) -> ChosenSettings:
    """The shipped values (with `changes` edited into the file), and what `--set` would add."""
    assigned, faults = parse_assignments(list(assignments))
    if faults:
        raise SettingsError(faults)
    return choose_settings(VALUES | changes, overrides or {}, assigned, has_gpu=lambda: gpu)


def faults_of(*assignments: str, **changes: object) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        choose(*assignments, **changes)
    return caught.value.faults


def shipped_config_on(num_cores: int, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The config file as it is read on a machine with this many cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(num_cores)), raising=False)
    spec = importlib.util.spec_from_file_location(f"config_with_{num_cores}_cores", CONFIG_FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- The file as shipped ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NUM_PROCESSES", 4),
        ("BUFFER_SIZE", 50_000),
        ("BATCH_SIZE", 512),
        ("EPISODES_PER_EPOCH", 16),
        ("MODEL_UPDATE_FREQUENCY", 5),
        ("TRAINING_WORKERS", 1),
        ("TRAINING_STEPS_PER_SAMPLE", 4),
        ("GRADIENT_ACCUMULATION_STEPS", 4),
    ],
)
def test_the_shipped_file_has_the_optimized_value(name, value):
    assert VALUES[name] == value


def test_the_shipped_file_moves_a_thousand_experiences_a_commit_and_names_the_other_settings():
    assert VALUES["EXPERIENCE_BATCH_SIZE"] >= 1_000
    assert VALUES["USE_DATA_PARALLEL"] in (True, False)
    assert VALUES["REP_Q_SIZE"] >= 1
    chosen = choose().settings.collecting  # a queue of 10,000 experiences for each of the four collectors
    assert chosen.ring_slots * chosen.chunk_experiences == pytest.approx(10_000, rel=0.02)


def test_the_shipped_file_names_every_setting_and_nothing_else():
    assert sorted(VALUES) == sorted(NAMES)


def test_every_setting_in_the_shipped_file_carries_a_reason():
    text = CONFIG_FILE.read_text()
    comments = {
        token.start[0]: token.string.strip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith("# ---")
    }
    setting_lines: dict[int, str] = {}
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if name.id == "CPU_OVERRIDES":
                    setting_lines |= {key.lineno: key.value for key in statement.value.keys}
                elif not name.id.startswith("_"):
                    setting_lines[statement.lineno] = name.id
    assert set(setting_lines.values()) >= set(NAMES) - {"WORLD"}  # WORLD and STAGE share a line

    without_reason = []
    explained: set[int] = set()
    for line in sorted(setting_lines):
        # A comment on the line, or one that opens the group: the lines above, without a gap.
        if len(comments.get(line, "")) > 10 or line - 1 in explained or (line - 1) in comments:
            explained.add(line)
        else:
            without_reason.append(setting_lines[line])
    assert not without_reason


@pytest.mark.parametrize("num_cores", [1, 2, 4, 16, 23, 24])
def test_the_shipped_file_is_valid_without_a_gpu(num_cores, monkeypatch):
    values, overrides = read_config_module(shipped_config_on(num_cores, monkeypatch))
    chosen = choose_settings(values, overrides, {}, has_gpu=lambda: False)
    assert chosen.settings.collecting.num_processes == max(1, num_cores // 12)


@pytest.mark.parametrize("num_cores", [24, 64, 512])
def test_the_shipped_file_is_valid_without_a_gpu_on_a_machine_with_many_cores(num_cores, monkeypatch):
    values, overrides = read_config_module(shipped_config_on(num_cores, monkeypatch))
    choose_settings(values, overrides, {}, has_gpu=lambda: False)


def test_the_shipped_file_is_valid_with_a_gpu_and_then_ignores_the_cpu_overrides():
    chosen = choose_settings(VALUES, OVERRIDES, {}, has_gpu=lambda: True)
    assert chosen.settings.learning.batch_size == VALUES["BATCH_SIZE"]
    assert set(chosen.sources.values()) == {"config"}


# --- Precedence -------------------------------------------------------------------------------------------------------


def test_cpu_overrides_win_over_the_file_and_the_command_line_wins_over_both():
    chosen = choose("HIDDEN_UNITS=64", gpu=False, overrides={"BATCH_SIZE": 128, "HIDDEN_UNITS": 256})
    assert (chosen.settings.sampling.gamma, chosen.sources["GAMMA"]) == (VALUES["GAMMA"], "config")
    assert (chosen.settings.learning.batch_size, chosen.sources["BATCH_SIZE"]) == (128, "cpu")
    assert (chosen.settings.network.hidden_units, chosen.sources["HIDDEN_UNITS"]) == (64, "set")
    assert set(chosen.sources) == set(NAMES)


@pytest.mark.parametrize(
    ("assignments", "gpu", "expected"),
    [([], True, 512), ([], False, 128), (["DEVICE=cpu"], True, 128), (["DEVICE=cuda"], False, 512)],
)
def test_cpu_overrides_count_only_where_the_run_is_on_a_cpu(assignments, gpu, expected):
    chosen = choose(*assignments, gpu=gpu, overrides={"BATCH_SIZE": 128})
    assert chosen.settings.learning.batch_size == expected


def test_the_last_of_two_assignments_wins():
    assert choose("SEED=2", "seed=3").settings.run.seed == 3


def test_settings_of_a_resumed_run_are_named_as_its_own():
    chosen = choose_resumed_settings(VALUES, lambda: pytest.fail("read"), {"SEED": 5}, has_gpu=lambda: True)
    assert (chosen.sources["GAMMA"], chosen.sources["SEED"]) == ("run", "set")


# --- Faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("BATCHSIZE", "BATCH_SIZE"), ("NUM_PROCESS", "NUM_PROCESSES"), ("LR", "LEARNING_RATE"), ("EPOCHS", "MAX_EPOCHS")],
)
def test_an_unknown_setting_names_the_nearest_one(name, nearest):
    assert faults_of(f"{name}=1") == [f"{name} (--set) is not a setting: did you mean {nearest}?"]


def test_an_unknown_setting_in_the_file_names_the_file():
    (fault,) = faults_of(BATCH_SIZES=3)
    assert fault == "BATCH_SIZES (config_optimized.py) is not a setting: did you mean BATCH_SIZE?"


def test_an_unknown_setting_in_the_cpu_overrides_names_them():
    with pytest.raises(
        SettingsError, match=r"^HIDDEN \(CPU_OVERRIDES\) is not a setting: did you mean HIDDEN_UNITS\?$"
    ):
        choose(gpu=False, overrides={"HIDDEN": 3})


def test_a_cpu_override_whose_name_lost_its_quotes_is_a_fault():
    with pytest.raises(SettingsError, match="CPU_OVERRIDES has the key 512: write names of settings in quotes"):
        choose(gpu=False, overrides={512: 128})


def test_cpu_overrides_that_are_no_dictionary_are_a_fault():
    module = types.ModuleType("config")
    module.CPU_OVERRIDES = ["BATCH_SIZE"]
    with pytest.raises(SettingsError, match="CPU_OVERRIDES must be a dictionary"):
        read_config_module(module)


def test_a_setting_that_is_missing_from_the_file_is_named():
    values = {name: value for name, value in VALUES.items() if name != "GAMMA"}
    with pytest.raises(SettingsError, match=r"^GAMMA is missing from config_optimized.py"):
        choose_settings(values, {}, {}, has_gpu=lambda: True)


@pytest.mark.parametrize(
    ("assignment", "shown", "allowed"),
    [
        ("BATCH_SIZE=large", "BATCH_SIZE = 'large'", "whole number"),
        ("BATCH_SIZE=2.5", "BATCH_SIZE = 2.5", "whole number"),
        ("BATCH_SIZE=True", "BATCH_SIZE = True", "whole number"),
        ("LEARNING_RATE=fast", "LEARNING_RATE = 'fast'", "a number"),
        ("LEARNING_RATE=False", "LEARNING_RATE = False", "a number"),
        ("USE_AMP=1", "USE_AMP = 1", "True or False"),
        ("USE_AMP=yes", "USE_AMP = 'yes'", "True or False"),
        ("LEVELS=7", "LEVELS = 7", "pairs of world and stage"),
        ("LEVELS=[(1,1),2]", "LEVELS = [(1, 1), 2]", "pairs of world and stage"),
        ("LEVELS=[(1,1),(1,5)]", "LEVELS = [(1, 1), (1, 5)]", "(1, 5) is no level"),
        ("LEVELS=[(1,1.0)]", "LEVELS = [(1, 1.0)]", "is no level"),
        ("NETWORK_CHANNELS=(16,32)", "NETWORK_CHANNELS = (16, 32)", "3 whole numbers"),
        ("NETWORK_CHANNELS=(16,32,2.5)", "NETWORK_CHANNELS = (16, 32, 2.5)", "whole number"),
        ("NETWORK_CHANNELS=(16,32,0)", "NETWORK_CHANNELS = (16, 32, 0)", "between 1 and 4,096"),
        ("WORLD=9", "WORLD = 9", "between 1 and 8"),
        ("STAGE=0", "STAGE = 0", "between 1 and 4"),
        ("GAMMA=1.01", "GAMMA = 1.01", "between 0.0 and 1.0"),
        ("BUFFER_SIZE=-1", "BUFFER_SIZE = -1", "between 1 and 1,000,000,000"),
        ("ACTIONS=all", "ACTIONS = 'all'", "'right_only', 'simple', 'complex'"),
        ("DEVICE=True", "DEVICE = True", "'auto', 'cpu', 'cuda'"),
        ("DEVICE=", "DEVICE = ''", "'auto', 'cpu', 'cuda'"),
    ],
)
def test_a_wrong_value_gives_one_sentence_with_setting_value_and_what_is_allowed(assignment, shown, allowed):
    (fault,) = faults_of(assignment)
    assert fault.startswith(f"{shown} (command line): must ")
    assert allowed in fault
    assert fault.endswith(".")
    assert "\n" not in fault


@pytest.mark.parametrize(
    ("assignments", "named"),
    [
        (["TRAINING_STEPS_PER_SAMPLE=4", "GRADIENT_ACCUMULATION_STEPS=3"], ["TRAINING_STEPS_PER_SAMPLE = 4", "= 3"]),
        (["REP_Q_SIZE=100"], ["REP_Q_SIZE = 100", "at least 512"]),
        (["REP_Q_SIZE=1e9"], ["REP_Q_SIZE = 1,000,000,000", "CHUNK_DECISIONS"]),
        (["BUFFER_SIZE=4000", "WARMUP_EXPERIENCES=1000"], ["BUFFER_SIZE = 4,000", "16 emulators", "at least 4,688"]),
        (["WARMUP_EXPERIENCES=30000"], ["WARMUP_EXPERIENCES = 30,000", "BUFFER_SIZE = 50,000"]),
        (["WARMUP_EXPERIENCES=10"], ["WARMUP_EXPERIENCES = 10", "at least 144"]),
        (["EPSILON_LADDER_LOW=0.9"], ["EPSILON_LADDER_LOW = 0.9", "EPSILON_LADDER_HIGH = 0.2"]),
    ],
)
def test_settings_that_are_wrong_together_give_one_sentence_with_numbers(assignments, named):
    (fault,) = faults_of(*assignments)
    assert all(part in fault for part in named)
    assert "\n" not in fault


@pytest.mark.parametrize(
    ("assignments", "remedy"),
    [
        (["REP_Q_SIZE=100"], "REP_Q_SIZE=512"),
        (["BUFFER_SIZE=4000", "WARMUP_EXPERIENCES=1000"], "BUFFER_SIZE=4688"),
        (["WARMUP_EXPERIENCES=10"], "WARMUP_EXPERIENCES=144"),
    ],
)
def test_the_remedy_that_a_conflict_names_is_enough(assignments, remedy):
    faults_of(*assignments)
    assert choose(*assignments, remedy)


def test_levels_name_what_is_played_or_else_world_and_stage_do():
    values = VALUES | {"WORLD": 3, "STAGE": 2}
    alone = choose_settings(values, {}, {}, has_gpu=lambda: True).settings
    assert [str(level) for level in alone.task.levels_played] == ["3-2"]
    several = choose_settings(values, {}, {"LEVELS": [(1, 1), (4, 2)]}, has_gpu=lambda: True).settings
    assert [str(level) for level in several.task.levels_played] == ["1-1", "4-2"]


def test_a_level_that_is_named_twice_is_a_fault():
    (fault,) = faults_of("LEVELS=[(1,1),(1,2),(1,1)]")
    assert fault.endswith("(command line): must name a level once; (1, 1) is there 2 times.")


@pytest.mark.parametrize("assignment", ["WORLD=2", "STAGE=2"])
def test_a_level_that_levels_would_hide_is_a_fault_with_the_remedy(assignment):
    (fault,) = faults_of(assignment, LEVELS=[(1, 1)])
    shown = assignment.replace("=", " = ")
    assert fault == (
        f"{shown} (command line) would not be played: LEVELS = [(1, 1)] (config_optimized.py) names the levels; "
        'add --set "LEVELS=[]".'
    )
    assert choose(assignment, "LEVELS=[]", LEVELS=[(1, 1)])
    assert choose(LEVELS=[(1, 1)], WORLD=2)  # only what was asked for just now


def test_a_value_too_nested_to_print_is_a_fault_and_no_crash():
    value = []
    for _ in range(100_000):
        value = [value]
    (fault,) = faults_of(SEED=value)
    assert fault.startswith("SEED = lists within lists (config_optimized.py): must be")


@pytest.mark.parametrize("num_cores", [1, 2, 8, 12, 16, 64])
def test_the_remedy_for_nes_py_with_few_collectors_is_accepted(num_cores, monkeypatch):
    values, overrides = read_config_module(shipped_config_on(num_cores, monkeypatch))
    now = choose_settings(values, overrides, {"EMULATOR": "nes_py"}, has_gpu=lambda: False).settings
    advice = advise_more_collectors(now.collecting.num_processes, num_cores)
    if num_cores == 1:
        assert advice is None
        return
    wanted = int(re.fullmatch(r".*Remedy: --set NUM_PROCESSES=(\d+)", advice)[1])
    assert wanted == min(num_cores, 12)
    assigned = {"EMULATOR": "nes_py", "NUM_PROCESSES": wanted}
    then = choose_settings(values, overrides, assigned, has_gpu=lambda: False).settings
    assert advise_more_collectors(then.collecting.num_processes, num_cores) is None


def test_all_faults_are_reported_at_once():
    faults = faults_of(
        "BATCHSIZE=3",
        "GAMMA=2",
        "USE_AMP=1",
        "DEVICE=tpu",
        "REP_Q_SIZE=1",
        "EPSILON_LADDER_LOW=0.9",
        BATCH_SIZES=3,
    )
    for name in ("BATCHSIZE", "GAMMA", "USE_AMP", "DEVICE", "REP_Q_SIZE", "EPSILON_LADDER_LOW", "BATCH_SIZES"):
        assert sum(fault.startswith(f"{name} ") for fault in faults) == 1, name
    assert len(faults) == 7


def test_a_faulty_value_in_the_file_hides_no_conflict_of_other_settings():
    faults = faults_of(FRAME_SKIP="four", EPSILON_LADDER_LOW=0.9)
    assert [fault.split(" = ")[0] for fault in faults] == ["FRAME_SKIP", "EPSILON_LADDER_LOW"]


def test_a_faulty_setting_is_in_no_conflict():
    faults = faults_of("NUM_PROCESSES=many", "BUFFER_SIZE=4000", "WARMUP_EXPERIENCES=1000")
    assert [fault.split(" = ")[0] for fault in faults] == ["NUM_PROCESSES"]


def test_assignments_that_are_no_assignments_are_all_named():
    values, faults = parse_assignments(["BATCH_SIZE", "=3", "SEED=1"])
    assert [fault.split(":")[0] for fault in faults] == ["--set BATCH_SIZE", "--set =3"]
    assert values == {"SEED": 1}


def test_a_setting_in_small_letters_is_a_fault_and_not_ignored():
    module = types.ModuleType("config")
    module.batch_size = 3
    with pytest.raises(SettingsError, match="write it in capitals, as BATCH_SIZE"):
        read_config_module(module)


# --- Values that are accepted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1e5", "100000", "100_000", "100000.0", " 100000 "])
def test_a_whole_number_may_be_written_in_other_ways(text):
    size = choose(f"BUFFER_SIZE={text}").settings.replay.buffer_size
    assert (size, type(size)) == (100_000, int)


def test_a_whole_number_becomes_a_float_where_a_number_is_wanted():
    gamma = choose("GAMMA=1").settings.sampling.gamma
    assert (gamma, type(gamma)) == (1.0, float)


def test_names_may_be_written_small_and_words_with_or_without_quotes():
    chosen = choose("actions=complex", "Device='cpu'", "network_channels=[1, 2, 3]").settings
    assert (chosen.play.actions, chosen.hardware.device, chosen.network.network_channels) == (
        "complex",
        "cpu",
        (1, 2, 3),
    )


def test_a_value_may_contain_an_equals_sign():
    (fault,) = faults_of("ACTIONS=a=b")
    assert "'a=b'" in fault


# --- Odd values -------------------------------------------------------------------------------------------------------

ODD_VALUES = [
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-1e400",
    "9" * 400,
    "-" + "9" * 400,
    "9" * 5000,
    "1j",
    "...",
    "None",
    "b'x'",
]
ODD_VALUES += [
    "",
    "()",
    "[[]]",
    "{}",
    "{1: 2}",
    "'",
    '"',
    "\\",
    "\0",
    "\ud800",
    "1\n2",
    "__import__('os')",
    "-" * 3000 + "1",
    "-" * 100_000 + "1",
]
ODD_VALUES += ["[" * 5000, "[" * 90 + "]" * 90, "0x", "1_", "(1,2,nan)", "(1e400, 1, 1)"]
UNPRINTABLE_VALUES = ["0x" + "f" * 5000, "(1, 1, 0x" + "f" * 5000 + ")"]  # Python refuses to print such integers
UNHASHABLE_VALUES = ["{[]}", "{[1]: 2}", "{{1}}"]
LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
).map(repr)


def set_and_check(assignment: str) -> None:
    try:
        chosen = choose(assignment)
    except SettingsError:
        return
    value = chosen.settings.flat()[assignment.partition("=")[0].strip().upper()]
    assert type(value) in (int, float, str, bool, tuple)
    assert not (isinstance(value, float) and math.isnan(value))


@pytest.mark.parametrize("text", ODD_VALUES, ids=[text.encode("unicode_escape").decode()[:20] for text in ODD_VALUES])
def test_an_odd_value_is_a_fault_and_no_crash(text):
    for name in ("BUFFER_SIZE", "GAMMA", "USE_AMP", "DEVICE", "NETWORK_CHANNELS", "SEED", "NONSENSE"):
        faults_of(f"{name}={text}")


@pytest.mark.parametrize("text", UNPRINTABLE_VALUES, ids=["plain", "tuple"])
def test_an_integer_too_long_to_print_is_a_fault_and_no_crash(text):
    for name in ("BUFFER_SIZE", "GAMMA", "USE_AMP", "DEVICE", "NETWORK_CHANNELS", "SEED"):
        faults_of(f"{name}={text}")


@pytest.mark.parametrize("text", UNHASHABLE_VALUES)
def test_a_set_of_lists_is_a_fault_and_no_crash(text):
    faults_of(f"NETWORK_CHANNELS={text}")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, None, object(), int, [1], {}, 1j, b"x"])
def test_an_odd_value_in_the_file_is_a_fault_and_no_crash(value):
    for name in ("BUFFER_SIZE", "GAMMA", "USE_AMP", "DEVICE", "NETWORK_CHANNELS"):
        (fault,) = faults_of(**{name: value})
        assert fault.startswith(f"{name} = ")


@hypothesis_settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(name=st.sampled_from(NAMES), text=st.text() | LITERALS | st.integers().map(str))
def test_any_value_text_gives_settings_or_a_settings_error(name, text):
    set_and_check(f"{name}={text}")


@hypothesis_settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(name=st.text() | st.sampled_from(NAMES).map(lambda name: name[1:]), text=st.text(max_size=3))
@example(name="", text="")
@example(name="_", text="1")
@example(name="CPU_OVERRIDES", text="{}")
@example(name="num_streams", text="1")
@example(name="ẞ", text="1")
def test_any_name_gives_settings_or_a_settings_error(name, text):
    set_and_check(f"{name}={text}")


@hypothesis_settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    envs=st.integers(1, 64),
    processes=st.integers(1, 64),
    chunk=st.integers(1, 256),
    queue=st.integers(1, 10**6),
    buffer=st.integers(1, 10**6),
    n_step=st.integers(1, 32),
)
def test_accepted_sizes_leave_room_for_two_chunks_a_ring_and_for_windows_in_every_stream(
    envs, processes, chunk, queue, buffer, n_step
):
    changes = {
        "ENVS_PER_PROCESS": envs,
        "NUM_PROCESSES": processes,
        "CHUNK_DECISIONS": chunk,
        "REP_Q_SIZE": queue,
        "BUFFER_SIZE": buffer,
        "N_STEP": n_step,
        "WARMUP_EXPERIENCES": max(1, buffer // 3),
    }
    try:
        chosen = choose(**changes).settings
    except SettingsError:
        return
    rules = chosen.collecting
    assert rules.ring_slots >= 2
    assert rules.ring_slots * rules.num_processes * rules.chunk_experiences <= 2 * rules.rep_q_size
    assert chosen.replay.buffer_size // rules.num_streams > rules.chunk_decisions + chosen.sampling.n_step
