import builtins
import io
import os

import pytest
import torch

from mario_rl.app.plan import describe_plan
from mario_rl.settings import hardware
from mario_rl.settings.choosing import ChosenSettings, choose_settings
from mario_rl.settings.hardware import HardwareError, make_plan
from tests.small_runs import SMALL, small_settings

CPU = torch.device("cpu")
GPU = torch.device("cuda")


@pytest.fixture
def cores(monkeypatch):
    def have(count):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(count)), raising=False)

    return have


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


def have_memory(monkeypatch, num_bytes):
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": num_bytes}))


def have_cpu_flags(monkeypatch, flags):
    def open_cpuinfo(path, *arguments, **options):
        if path == "/proc/cpuinfo":
            return io.StringIO(f"processor\t: 0\nmodel name\t: Test CPU\nflags\t\t: fpu {flags}\n")
        return real_open(path, *arguments, **options)

    real_open = builtins.open
    monkeypatch.setattr(builtins, "open", open_cpuinfo)


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_too_little_memory_is_refused_with_the_settings_and_figures_before_anything_is_allocated(monkeypatch):
    have_memory(monkeypatch, 1_000_000_000)
    # A billion rows are 7 TB: had anything been allocated, this would end in a MemoryError or worse.
    with pytest.raises(HardwareError) as caught:
        make_plan(small_settings(BUFFER_SIZE=10**9), serial=False)
    message = str(caught.value)
    assert "only 1,000 MB of memory are free" in message
    assert "BUFFER_SIZE (7,063,000 MB)" in message
    assert "REP_Q_SIZE" in message
    assert "\n" not in message


def test_memory_counts_the_rings_and_leaves_a_reserve(monkeypatch):
    settings = small_settings()
    have_memory(monkeypatch, 10**12)
    plan = make_plan(settings, serial=False)
    assert plan.replay_bytes == 2_400 * 7_063
    assert plan.ring_bytes > 0
    have_memory(monkeypatch, plan.replay_bytes + plan.ring_bytes)  # not one byte would be left
    with pytest.raises(HardwareError):
        make_plan(settings, serial=False)
    have_memory(monkeypatch, 2 * (plan.replay_bytes + plan.ring_bytes))
    assert make_plan(settings, serial=False) is not None


# --- Device and threads -----------------------------------------------------------------------------------------------


def test_cuda_without_a_cuda_device_is_refused():
    with pytest.raises(HardwareError, match=r"^DEVICE = 'cuda', but torch sees no CUDA device: set DEVICE to 'auto'"):
        make_plan(small_settings(DEVICE="cuda"), serial=False)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_without_a_gpu_the_run_is_on_the_cpu(device):
    plan = make_plan(small_settings(DEVICE=device), serial=False)
    assert (plan.device, plan.num_gpus) == (CPU, 0)


@pytest.mark.parametrize(
    ("emulator", "num_cores", "num_processes", "serial", "expected"),
    [
        ("nes_py", 8, 3, False, 5),  # the collectors take a core each, the learner the rest
        ("nes_py", 4, 4, False, 2),  # at least two, also where the collectors take all ...
        ("nes_py", 2, 8, False, 2),  # ... or more than there are
        ("nes_py", 1, 1, False, 1),  # but never more than cores
        ("nes_py", 8, 3, True, 8),  # in serial mode there are no collector processes
        ("fast", 8, 3, False, 8),  # the collectors mostly wait
        ("fast", 2, 8, False, 2),
        ("fast", 8, 3, True, 8),
    ],
)
def test_the_learner_gets_the_cores_that_the_collectors_leave(
    cores, emulator, num_cores, num_processes, serial, expected
):
    cores(num_cores)
    sizes = {"LEARNER_THREADS": 0, "BUFFER_SIZE": 10_000, "REP_Q_SIZE": 1_000, "WARMUP_EXPERIENCES": 500}
    settings = small_settings(EMULATOR=emulator, NUM_PROCESSES=num_processes, **sizes)
    assert make_plan(settings, serial=serial).learner_threads == expected


def test_learner_threads_that_are_set_win(cores):
    cores(8)
    assert make_plan(small_settings(LEARNER_THREADS=3), serial=False).learner_threads == 3


@pytest.mark.parametrize(("threads", "serial", "expected"), [(1, False, False), (2, False, True), (2, True, False)])
def test_targets_are_computed_ahead_where_there_are_threads_for_it(threads, serial, expected):
    assert make_plan(small_settings(LEARNER_THREADS=threads), serial=serial).targets_ahead is expected


# --- Compilation ------------------------------------------------------------------------------------------------------


def test_compile_auto_on_a_cpu_is_off_with_a_reason():
    plan = make_plan(small_settings(COMPILE="auto"), serial=False)
    assert plan.compile_mode is None
    assert plan.compilation.value == "off"
    assert "CPU" in plan.compilation.reason


def test_compile_on_without_a_compiler_is_off_and_says_so(no_compiler):
    plan = make_plan(small_settings(COMPILE="on"), serial=False)
    assert plan.compile_mode is None
    assert plan.compilation.value == "off"
    assert "no C++ compiler was found" in plan.compilation.reason


def test_compile_on_with_a_compiler_is_on(no_compiler, tmp_path):
    compiler = tmp_path / "clang++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    plan = make_plan(small_settings(COMPILE="on"), serial=False)
    assert (plan.compile_mode, plan.compilation.value) == ("default", "on")


def test_compile_off_is_off_on_a_gpu_too():
    mode, choice = hardware._choose_compilation(small_settings(COMPILE="off").hardware, GPU, 1, 1)
    assert (mode, choice.value) == (None, "off")


def test_a_single_gpu_with_a_compiler_compiles_and_several_do_not(monkeypatch):
    monkeypatch.setattr(hardware, "has_compiler", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    settings = small_settings(COMPILE="auto").hardware
    assert hardware._choose_compilation(settings, GPU, 1, 1)[0] == "reduce-overhead"
    mode, choice = hardware._choose_compilation(settings, GPU, 2, 1)
    assert mode is None
    assert "USE_DATA_PARALLEL" in choice.reason


def test_a_gpu_older_than_triton_knows_does_not_compile(monkeypatch):
    monkeypatch.setattr(hardware, "has_compiler", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    mode, choice = hardware._choose_compilation(small_settings(COMPILE="on").hardware, GPU, 1, 1)
    assert mode is None
    assert "older" in choice.reason


# --- Precision --------------------------------------------------------------------------------------------------------


def test_a_cpu_without_bfloat16_computes_in_float32_and_says_why(monkeypatch):
    have_cpu_flags(monkeypatch, "avx2 avx512f")
    plan = make_plan(small_settings(USE_AMP=True), serial=False)
    assert plan.autocast_dtype is None
    assert plan.precision.value == "float32"
    assert "no bfloat16" in plan.precision.reason


@pytest.mark.parametrize(("speed_up", "expected"), [(0.3, None), (1.05, None), (1.8, torch.bfloat16)])
def test_a_cpu_with_bfloat16_uses_it_only_where_it_measures_faster(monkeypatch, speed_up, expected):
    have_cpu_flags(monkeypatch, "avx512_bf16")
    monkeypatch.setattr(hardware, "_measure_bfloat16", lambda: speed_up)
    plan = make_plan(small_settings(USE_AMP=True), serial=False)
    assert plan.autocast_dtype == expected
    assert f"{speed_up:.1f}x" in plan.precision.reason


def test_measuring_bfloat16_gives_a_ratio_and_leaves_the_threads_as_they_were():
    threads = torch.get_num_threads()
    assert hardware._measure_bfloat16() > 0
    assert torch.get_num_threads() == threads


def test_use_amp_off_computes_in_float32_everywhere():
    for device in (CPU, GPU):
        dtype, choice = hardware._choose_precision(small_settings(USE_AMP=False).hardware, device)
        assert (dtype, choice.value, choice.reason) == (None, "float32", "USE_AMP is off")


def test_a_gpu_computes_in_float16():
    assert hardware._choose_precision(small_settings().hardware, GPU)[0] == torch.float16


# --- The plan that the user reads -------------------------------------------------------------------------------------


def test_the_plan_shows_every_choice_with_its_reason_and_where_settings_come_from(cores):
    cores(4)
    settings = small_settings(COMPILE="auto", LEARNER_THREADS=0)
    chosen: ChosenSettings = choose_settings(
        settings.flat(), {"HIDDEN_UNITS": 24}, {"SEED": 7, "NETWORK_CHANNELS": (2, 3, 4)}, has_gpu=lambda: False
    )
    plan = make_plan(chosen.settings, serial=False)
    text = describe_plan(plan, chosen, "mario-1-1-x", serial=False)
    assert "run mario-1-1-x: level 1-1, simple actions, seed 7" in text
    assert "4 cores" in text
    assert "2 collector processes with 1 thread and 2 emulators each; learner 4" in text
    assert plan.precision.reason in text
    assert plan.compilation.reason in text
    assert "from config_optimized.py, except" in text
    assert "from CPU_OVERRIDES: HIDDEN_UNITS=24" in text
    assert "from command line: NETWORK_CHANNELS=(2,3,4), SEED=7" in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_the_plan_of_a_serial_run_has_no_collector_processes():
    settings = small_settings()
    chosen = ChosenSettings(settings, dict.fromkeys(SMALL, "config"))
    text = describe_plan(make_plan(settings, serial=True), chosen, "x", serial=True)
    assert "1 collector with 2 emulators inside this process" in text
    assert "except" not in text
