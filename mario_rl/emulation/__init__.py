"""Emulators: a console that runs one frame at a time and shows its RAM and its picture."""
