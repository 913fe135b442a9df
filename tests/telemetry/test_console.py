import os
import sys
import threading

import pytest

from mario_rl.telemetry.console import Console, MainFigures, main_line, processor_line


def fields(line):
    """The tag and the field names of a line, in order."""
    tag, _, rest = line.partition(" ")
    return tag, [part.split(": ")[0] for part in rest.split(" | ")]


def test_the_main_line_has_its_fields_in_order_with_thousands_separators():
    line = main_line(MainFigures(1_234, 0.01234, 1.5, 2_345.67, 3_161.4, 0.0512, 50_000))
    assert line == (
        "[MAIN] Epoch: 1,234 | Loss: 0.0123 | TD Error: 1.5000 | Reward: 2,345.7 | Distance: 3,161 | "
        "Epsilon: 0.051 | Buffer: 50,000"
    )
    assert fields(line) == ("[MAIN]", ["Epoch", "Loss", "TD Error", "Reward", "Distance", "Epsilon", "Buffer"])


def test_the_main_line_says_that_learning_has_not_begun():
    line = main_line(MainFigures(1, None, None, -25.0, 300.0, 1.0, 900))
    assert line == (
        "[MAIN] Epoch: 1 | Loss: warming up | TD Error: warming up | Reward: -25.0 | Distance: 300 | "
        "Epsilon: 1.000 | Buffer: 900"
    )


def test_a_loss_of_zero_is_a_loss():
    assert "Loss: 0.0000 | TD Error: 0.0000" in main_line(MainFigures(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0))


def test_the_processor_line_has_its_fields_in_order_with_thousands_separators():
    line = processor_line(1_234_567, 1_234, 5_678, 50_000, 12_800)
    assert line == (
        "[PROCESSOR] Processed: 1,234,567 | Batches: 1,234 | Drops: 5,678 | Buffer: 50,000 | Consolidated Queue: 12,800"
    )
    assert fields(line) == ("[PROCESSOR]", ["Processed", "Batches", "Drops", "Buffer", "Consolidated Queue"])


def test_without_a_terminal_there_are_plain_lines_and_no_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes rich colour files as well
    lines = [
        main_line(MainFigures(1, None, None, 0.0, 0.0, 1.0, 0)),
        processor_line(1, 2, 3, 4, 5),
        "[bold]not markup[/bold] " + "long " * 50,
    ]
    with Console() as console:
        for line in lines:
            console.progress(0.5, "epoch 1")
            console.line(line)
    output = capsys.readouterr()
    assert output.out.splitlines() == lines
    assert output.err == ""


def test_without_a_terminal_every_line_is_on_its_way_at_once(tmp_path, monkeypatch):
    path = tmp_path / "log"
    with open(path, "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        with Console() as console:
            console.line("[MAIN] Epoch: 1")
            assert path.read_text() == "[MAIN] Epoch: 1\n"  # `tail -f` sees it; nothing waits in a buffer


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 40 columns: what to use as stdout, and a function that closes it and tells what was shown."""
    pty = pytest.importorskip("pty")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    master, slave = pty.openpty()
    shown = bytearray()

    def read():
        while True:
            try:
                shown.extend(os.read(master, 65_536))
            except OSError:  # the other end is closed
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    stdout = os.fdopen(slave, "w")

    def close():
        stdout.close()
        reader.join(timeout=10)
        return shown.decode()

    yield stdout, close
    close()
    os.close(master)


def test_on_a_terminal_lines_stay_whole_and_a_bar_is_shown(terminal, monkeypatch):
    line = main_line(MainFigures(1_234, 0.5, 1.5, 2_345.6, 3_161.0, 0.05, 50_000))
    stdout, close = terminal
    monkeypatch.setattr(sys, "stdout", stdout)
    with Console() as console:
        console.progress(0.25, "epoch 7")
        console.line(line)
        console.line("[bold]not markup[/bold]")
        console.progress(2.0, "done")
    monkeypatch.undo()
    shown = close()
    assert line in shown  # neither broken at column 40 nor coloured
    assert "[bold]not markup[/bold]" in shown
    assert "100%" in shown
    assert "200%" not in shown


def test_a_reader_that_has_gone_away_is_no_reason_to_stop(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        console = Console()
        console.line("nobody reads this")
        console.line("nor this")
        assert sys.stdout is not pipe
        sys.stdout.close()
        with pytest.raises(BrokenPipeError):
            pipe.close()  # what was never written goes with it
