"""Runs and models of earlier versions, kept in tests/fixtures: runs go on, models see other pictures today."""

import json
import sys
import tarfile

import pytest

from mario_rl.storage.checkpoints import CheckpointStore
from mario_rl.storage.policies import PolicyError, read_policy
from tests.small_runs import PROJECT, copy_project, run, saved_numbers

FIXTURES = PROJECT / "tests" / "fixtures"


@pytest.fixture
def project(tmp_path):
    def unpack(kind):
        copy_project(tmp_path)
        with tarfile.open(FIXTURES / f"{kind}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
        return tmp_path

    return unpack


@pytest.mark.parametrize(("kind", "options"), [("serial", ["--serial"]), ("parallel", [])])
def test_a_run_of_before_the_folders_goes_on(project, kind, options):
    folder = project(kind)
    before = CheckpointStore(folder / "checkpoints" / kind, keep=9).load_newest()
    arguments = [
        sys.executable,
        str(folder / "mario_rl_optimized.py"),
        "--resume",
        kind,
        "--decisions",
        "700",
        *options,
    ]
    code, stdout, stderr = run(arguments)
    assert code == 0, stderr
    # What runs did before there was a choice, not what config_optimized.py says now.
    newer = (
        "newer than the run: PROGRESS=x, MAP_REWARD=0.8, RESCUE_SHARE=0.0, SEARCH_MINUTES=5.0, "
        "FALLBACK_ACTIONS=complex, EXPLORE_SHORT_HOLD=8, NETWORK=convolutions"
    )
    assert newer in " ".join(stdout.split())
    assert "every emulator starts a new episode" in stdout  # the serial one's were saved without leads and cells
    assert "an earlier version drew pictures in another way" in stdout
    assert "replay starts empty" in stdout
    numbers = saved_numbers(folder / "checkpoints" / kind)
    assert numbers["ledger"]["collected"] >= 700 > before.numbers["ledger"]["collected"]
    assert numbers["learner"]["num_updates"] > before.numbers["learner"]["num_updates"]
    record = json.loads((folder / "checkpoints" / kind / "run.json").read_text())
    assert record["settings"]["NETWORK"] == "convolutions"
    assert len(record["sessions"]) == 2


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_a_model_that_was_trained_on_other_greys_is_refused(project, kind):
    with pytest.raises(PolicyError, match=r"grey with dark blues.*grey with a dark sky.*train it again"):
        read_policy(project(kind) / "models" / f"{kind}-newest.safetensors")
