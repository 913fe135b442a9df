"""What is written to disk and read again: checkpoints, policies, runs."""
