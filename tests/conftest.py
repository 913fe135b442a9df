"""Settings of the whole suite."""

import contextlib
import os
import signal

import pytest
import torch
from hypothesis import settings

from tests import small_runs

# No test asserts a time, hypothesis' own deadline included; and every run tries the same examples.
settings.register_profile("mario", deadline=None, derandomize=True, database=None)
settings.load_profile("mario")

# Two tests run at a time, and tiny networks gain nothing from a second thread, which would wait for the other test.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_run_outlives_its_test():
    """A test that fails or is cut off may leave a run behind, which would slow down all tests after it."""
    yield
    while small_runs.started:
        process = small_runs.started.pop()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
