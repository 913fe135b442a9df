"""Emulators: decisions a second, pictures included. Ours and nes-py play the whole task; the peers only run frames.

Every decision holds its buttons for four frames, applies gym-super-mario-bros' rules after each (ours and nes-py), and
ends with an 84 x 84 grey picture. The player walks, runs and jumps to the right at random; games that end start again.
"""

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cv2
import numpy as np

from benchmarks.measure import BROKEN_INSTALL, StudyResult, as_is, at_least, first_line, interleave, quotient
from mario_rl.emulation.choosing import choose_emulator
from mario_rl.emulation.emulator import NO_RESTART, Emulator, make_emulator
from mario_rl.emulation.rom import find_rom
from mario_rl.emulation.rules import Level
from mario_rl.experience import FRAME_SIZE

QUESTION = "How many decisions a second does each emulator play, on one core and on two?"
TEACHES = (
    "One core plays far more with the fast emulator than two cores learn from, so the pipeline needs no emulator "
    "threads. What bounds two threads is the machine: two processes that share nothing hardly gain more. Many games "
    "in one call gain little over one, since nearly all of the time is emulation itself."
)
FRAME_SKIP = 4
RIGHT_ACTIONS = np.array([0x80, 0x81, 0x82, 0x83, 0x01], np.uint8)
SECONDS = {"quick": 10, "full": 75}
NUM_GAMES = 16
MANY_GAMES = 128  # enough that waking the second thread does not count


def run(quick: bool) -> StudyResult:
    """Interleave all emulators at hand, a fraction of a second each."""
    if choose_emulator("fast", print) != "fast":
        return StudyResult([], {}, ["The fast emulator cannot be used here, so there is nothing to compare."])
    level = Level(1, 1)
    scale = 1 if quick else 3
    players = {
        "nes-py, 1 game": _RandomPlay(make_emulator("nes_py", [level]), 12 * scale),
        "fast, 1 game": _RandomPlay(make_emulator("fast", [level]), 600 * scale),
        "fast, 16 games": _RandomPlay(make_emulator("fast", [level] * NUM_GAMES), 40 * scale),
        "fast, 128 games": _RandomPlay(make_emulator("fast", [level] * MANY_GAMES), 8 * scale),
        "fast, 128 games, 2 threads": _RandomPlay(make_emulator("fast", [level] * MANY_GAMES, 2), 16 * scale),
    }
    variants: dict[str, Callable[[], float]] = {name: player.decisions_per_second for name, player in players.items()}
    processes = _TwoProcesses(level, MANY_GAMES // 2, 16 * scale)
    variants["fast, 64 games in each of 2 processes"] = processes.decisions_per_second
    missing = []
    for name, make in (("stable-retro", _stable_retro), ("cynes", _cynes)):
        try:
            variants[f"{name}, frames only"] = make(30 * scale)
        except BROKEN_INSTALL as error:
            missing.append(f"{name} was left out: {first_line(error)} (requirements-bench.txt)")
    measured = interleave(variants, repeats=5 if quick else 25)
    for player in players.values():
        player.emulator.close()
    processes.close()
    reference = measured["nes-py, 1 game"]
    rows = [
        {
            "emulator": name,
            "decisions/s": f"{sample.median:,.0f}",
            "frames/s": f"{FRAME_SKIP * sample.median:,.0f}",
            "spread": f"{sample.spread:.0%}",
            "x nes-py": f"{quotient(sample, reference).median:.1f}",
        }
        for name, sample in measured.items()
    ]
    one_thread, two_threads = measured["fast, 128 games"], measured["fast, 128 games, 2 threads"]
    two_processes = measured["fast, 64 games in each of 2 processes"]
    return StudyResult(
        rows,
        {
            "times nes-py, 1 game": at_least(quotient(measured["fast, 1 game"], reference), 50.0, "x"),
            "times nes-py, 16 games in one call": at_least(quotient(measured["fast, 16 games"], reference), 60.0, "x"),
            "2 threads against 1, 128 games": at_least(quotient(two_threads, one_thread), 1.8, "x"),
            "2 processes against 1 thread (the machine's bound)": as_is(quotient(two_processes, one_thread), "x"),
            "2 threads against 2 processes": as_is(quotient(two_threads, two_processes), "x"),
        },
        [
            "nes-py costs the same whatever happens in the game; ours costs more the more enemies there are.",
            "stable-retro and cynes are other emulators (not nes-py's timing), run here without the game's rules.",
            *missing,
        ],
    )


class _RandomPlay:
    """Random play on one emulator, a fixed number of steps at a time."""

    def __init__(self, emulator: Emulator, num_steps: int) -> None:
        self.emulator = emulator
        self._num_steps = num_steps
        self._rng = np.random.default_rng(0)
        self._restarts = np.full(emulator.num_games, NO_RESTART, np.int32)
        self._pictures = np.zeros((emulator.num_games, 1, FRAME_SIZE, FRAME_SIZE), np.uint8)

    def decisions_per_second(self) -> float:
        emulator = self.emulator
        actions = RIGHT_ACTIONS[self._rng.integers(len(RIGHT_ACTIONS), size=(self._num_steps, emulator.num_games))]
        begun = time.perf_counter()
        for buttons in actions:
            emulator.step(buttons, FRAME_SKIP, self._restarts, self._pictures, 0)
            np.copyto(self._restarts, np.where(emulator.outcomes.done, 0, NO_RESTART))
        return self._num_steps * emulator.num_games / (time.perf_counter() - begun)


class _TwoProcesses:
    """The same play in two processes that have nothing to do with each other: what two threads could reach at best."""

    def __init__(self, level: Level, games_each: int, num_steps: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._players: list[tuple[Any, Connection]] = []
        for _ in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=_play_when_told, args=(theirs, level, games_each, num_steps), daemon=True)
            process.start()
            theirs.close()
            self._players.append((process, ours))
        self._num_decisions = 2 * games_each * num_steps

    def decisions_per_second(self) -> float:
        begun = time.perf_counter()
        for _, connection in self._players:
            connection.send(True)
        for _, connection in self._players:
            connection.recv()
        return self._num_decisions / (time.perf_counter() - begun)

    def close(self) -> None:
        for process, connection in self._players:
            connection.send(False)
            process.join()


def _play_when_told(connection: Connection, level: Level, num_games: int, num_steps: int) -> None:
    player = _RandomPlay(make_emulator("fast", [level] * num_games), num_steps)
    while connection.recv():
        connection.send(player.decisions_per_second())


def _rate(decide: Callable[[], Any], num_decisions: int) -> Callable[[], float]:
    def measure() -> float:
        begun = time.perf_counter()
        for _ in range(num_decisions):
            picture = decide()
            cv2.resize(
                cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), (FRAME_SIZE, FRAME_SIZE), interpolation=cv2.INTER_AREA
            )
        return num_decisions / (time.perf_counter() - begun)

    return measure


def _stable_retro(num_decisions: int) -> Callable[[], float]:
    import stable_retro

    emulator = stable_retro.RetroEmulator(str(find_rom()))

    def decide() -> Any:
        for _ in range(FRAME_SKIP):
            emulator.step()
        return emulator.get_screen()

    return _rate(decide, num_decisions)


def _cynes(num_decisions: int) -> Callable[[], float]:
    import cynes

    console = cynes.NES(str(find_rom()))
    return _rate(lambda: console.step(FRAME_SKIP), max(1, num_decisions // 3))
