"""Watching the pipeline: lock timing, metrics and where they go, the console. Nothing here blocks a collector."""
