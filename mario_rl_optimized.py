"""Train an agent to play Super Mario Bros: `python mario_rl_optimized.py`. All options: `--help`."""

import sys
from pathlib import Path

if __name__ == "__main__":  # collectors are spawned: they import this file, and must not start a run of their own
    from mario_rl.app.signals import StopSignals

    stop = StopSignals()
    stop.install()  # before anything else: Ctrl-C may come at any moment

    from mario_rl.app.command_line import main

    sys.exit(main(Path(__file__).resolve().parent, stop))
