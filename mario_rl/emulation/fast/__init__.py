"""Our own emulator of the one game, compiled by numba. docs/emulator.md is its guide; `emulator.py` is its face."""
