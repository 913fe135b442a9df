"""Measure the pipeline's parts on this machine: `python benchmark_performance.py`. All options: `--help`."""

import sys

if __name__ == "__main__":  # studies start collector processes, which import this file
    from benchmarks.command_line import main

    sys.exit(main())
