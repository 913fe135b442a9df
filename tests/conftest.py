"""Settings of the whole suite."""

from hypothesis import settings

# No test asserts a time, hypothesis' own deadline included; and every run tries the same examples.
settings.register_profile("mario", deadline=None, derandomize=True, database=None)
settings.load_profile("mario")
