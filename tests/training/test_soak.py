"""Half an hour of the default pipeline while a collector is killed every 20 seconds. `pytest -m soak`, alone.

SOAK_MINUTES shortens it; SOAK_LOG names a file for everything that was seen.
"""

import json
import os
import random
import re
import statistics
import sys
import time

import psutil
import pytest

from tests.small_runs import collectors_of, copy_project, finish, only_run, saved_numbers, start

MINUTES = float(os.environ.get("SOAK_MINUTES", "30"))
LOG = os.environ.get("SOAK_LOG", os.devnull)
KILL_SECONDS, LOOK_SECONDS = 20.0, 2.0
GROWN_UP_SECONDS = 10.0  # the age at which a child has all its memory, and an evaluator its lower priority
TOLERANCE = 0.03


class Look:
    """What is seen of a run's processes at one moment."""

    def __init__(self, learner):
        self.time = time.time()
        self.learner = self._megabytes(learner)
        self.num_fds = learner.num_fds()
        children = [child for child in collectors_of(learner) if self.time - child.create_time() > GROWN_UP_SECONDS]
        collectors = [child for child in children if child.nice() == learner.nice()]
        self.collectors = [self._megabytes(child) for child in collectors]
        self.evaluator = [self._megabytes(child) for child in children if child not in collectors]
        self.pids = [child.pid for child in collectors]

    @staticmethod
    def _megabytes(process):
        return process.memory_info().rss / 1e6


def lower_quartiles(looks, value):
    """Of the first and the last eighth: nearly all of a steady growth lies between them.

    Not medians: for some seconds of every twenty the learner has two rings, and a median falls on either side.
    """
    eighth = len(looks) // 8
    parts = looks[:eighth], looks[-eighth:]
    return [statistics.quantiles([found for look in part for found in value(look)])[0] for part in parts]


@pytest.mark.soak
@pytest.mark.timeout(60 * MINUTES + 300)
def test_memory_and_files_stay_as_they_are_while_collectors_are_killed(tmp_path):
    project = copy_project(tmp_path)
    options = ["--minutes", str(MINUTES), "--set", "MAX_RESTARTS_PER_HOUR=1000"]
    with open(LOG, "w") as log, (tmp_path / "output").open("w") as output:
        process = start([sys.executable, str(project / "mario_rl_optimized.py"), *options], stdout=output)
        learner, chance = psutil.Process(process.pid), random.Random(0)
        looks, num_kills, next_kill = [], 0, time.monotonic() + 2 * KILL_SECONDS
        end = time.monotonic() + 60 * MINUTES - 10
        while time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            try:
                look = Look(learner)
            except psutil.NoSuchProcess:
                continue  # a child ended while it was looked at
            looks.append(look)
            print(json.dumps(vars(look)), file=log, flush=True)
            if time.monotonic() >= next_kill and look.pids:
                psutil.Process(chance.choice(look.pids)).kill()
                num_kills += 1
                next_kill += KILL_SECONDS
        code, _, stderr = finish(process, timeout_seconds=60)
        text = (tmp_path / "output").read_text()
        print(text[-2_000:], file=log)
    assert code == 0, stderr
    assert stderr == ""
    looks = [look for look in looks if look.time > looks[0].time + 60 * MINUTES / 4]  # warm-up: replay fills
    for name, value in {
        "learner": lambda look: [look.learner],
        "collectors": lambda look: look.collectors,
        "evaluator": lambda look: look.evaluator,
        "files": lambda look: [look.num_fds],
    }.items():
        before, after = lower_quartiles(looks, value)
        print(f"{name}: {before:.1f} -> {after:.1f}")
        assert after <= before * (1 + TOLERANCE), name
    row = json.loads((only_run(project) / "metrics.jsonl").read_text().splitlines()[-1])
    collected, accounts = row["decisions"], row["metrics"]
    print(num_kills, collected, accounts)
    assert accounts["collectors/restarts"] == num_kills
    assert accounts["collectors/written_decisions"] == collected + accounts["collectors/lost_decisions"]
    assert collected == accounts["replay/decisions"] + accounts["replay/overwritten_decisions"]
    assert saved_numbers(only_run(project))["ledger"]["collected"] == collected
    assert {int(drops) for drops in re.findall(r"Drops: (\d+)", text)} == {0}
