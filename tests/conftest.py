"""Settings of the whole suite."""

import torch
from hypothesis import settings

# No test asserts a time, hypothesis' own deadline included; and every run tries the same examples.
settings.register_profile("mario", deadline=None, derandomize=True, database=None)
settings.load_profile("mario")

# Two tests run at a time, and tiny networks gain nothing from a second thread, which would wait for the other test.
torch.set_num_threads(1)
