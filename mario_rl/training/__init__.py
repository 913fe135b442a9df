"""The training loop, its progress, its end, and what it reports."""
