"""requirements.lock belongs to requirements.txt."""

import re

from tests.small_runs import PROJECT

PIN = re.compile(r"^([A-Za-z0-9-]+)==([^\s;]+)", re.MULTILINE)


def pins(file):
    return set(PIN.findall((PROJECT / file).read_text()))


def test_every_pin_is_locked_in_the_same_version():
    assert pins("requirements.txt") <= pins("requirements.lock")


def test_everything_in_the_lock_has_a_hash():
    entries = re.split(r"\n(?=[a-z0-9])", (PROJECT / "requirements.lock").read_text())[1:]
    assert len(entries) > len(pins("requirements.txt"))
    assert all("--hash=sha256:" in entry for entry in entries)
