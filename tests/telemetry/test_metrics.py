import json
from pathlib import Path

import pytest

from mario_rl.telemetry.metrics import ForgivingSink, JsonLinesSink

needs_full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


def rows_of(path):
    return [json.loads(line)["decisions"] for line in path.read_text().splitlines() if line]


@needs_full_device
def test_a_full_disk_is_one_sentence_and_later_rows_are_written_again(tmp_path):
    path, notices = tmp_path / "metrics.jsonl", []
    sink = ForgivingSink(lambda: JsonLinesSink(path), path.name, notices.append)
    sink.write({"a/b": 1.0}, 1, 0.1)
    saved = path.rename(tmp_path / "saved")
    path.symlink_to("/dev/full")  # every write says that there is no room
    for number in (2, 3):
        sink.write({"a/b": 1.0}, number, 0.1)
    path.unlink()
    saved.rename(path)
    with path.open("a") as file:
        file.write('{"decisions": 3, "mi')  # as a disk leaves a line that fits only in part
    sink.write({"a/b": 1.0}, 4, 0.1)
    sink.close()
    assert len(notices) == 1
    assert "metrics.jsonl cannot be written" in notices[0]
    assert "No space left" in notices[0]
    lines = path.read_text().splitlines()
    assert json.loads(lines[0])["decisions"] == 1
    assert json.loads(lines[-1])["decisions"] == 4


def test_a_sink_that_cannot_even_be_made_is_one_sentence():
    notices = []

    def make():
        raise ModuleNotFoundError("No module named 'tensorboard'")

    sink = ForgivingSink(make, "TensorBoard's files", notices.append)
    sink.write({"a/b": 1.0}, 1, 0.1)
    sink.close()
    assert notices == [
        "[METRICS] TensorBoard's files cannot be written (No module named 'tensorboard'); training goes on without it."
    ]


def test_nothing_is_written_before_a_sink_is_opened():
    """A session makes its sinks before it knows whether the run can be resumed."""
    made = []
    sink = ForgivingSink(lambda: made.append("sink"), "a file", print)
    assert not made
    sink.open()
    assert made == ["sink"]


def test_rows_are_whole_while_the_run_goes_on(tmp_path):
    sink = JsonLinesSink(tmp_path / "metrics.jsonl")
    for number in range(3):
        sink.write({"a/b": number / 3}, number, 0.5)
        assert rows_of(tmp_path / "metrics.jsonl") == list(range(number + 1))
