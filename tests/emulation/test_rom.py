"""The ROM is found without importing its package, and one that cannot be played is refused in one sentence."""

import subprocess
import sys

import pytest

from mario_rl.emulation.rom import RomError, find_rom, read_rom


@pytest.fixture
def rom(tmp_path):
    """A copy that tests may spoil."""
    path = tmp_path / "game.nes"
    path.write_bytes(find_rom().read_bytes())
    return path


def _spoil(path, offset, value):
    content = bytearray(path.read_bytes())
    content[offset] = value
    path.write_bytes(content)


def test_the_rom_is_found_without_importing_its_package():
    code = "from mario_rl.emulation.rom import *; find_rom(); import sys; print('gym_super_mario_bros' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RomError, match=r"gym-super-mario-bros.*not installed.*pip install"):
        find_rom()


def test_the_real_rom_has_both_chips():
    rom = read_rom(find_rom())
    assert (len(rom.program), len(rom.patterns)) == (0x8000, 0x2000)


def test_another_mapper_is_refused(rom):
    _spoil(rom, 6, 0x41)  # mapper 4
    with pytest.raises(RomError, match=r"mapper 4.*mapper 0.*nes_py"):
        read_rom(rom)


def test_another_size_is_refused(rom):
    _spoil(rom, 4, 1)
    with pytest.raises(RomError, match="16 KB of program"):
        read_rom(rom)


@pytest.mark.parametrize("content", [b"", b"NES", b"PK\x03\x04" + bytes(40_000)])
def test_what_is_no_rom_is_refused(rom, content):
    rom.write_bytes(content)
    with pytest.raises(RomError, match="is not an NES ROM"):
        read_rom(rom)


def test_a_rom_that_is_cut_short_is_refused(rom):
    rom.write_bytes(rom.read_bytes()[:30_000])
    with pytest.raises(RomError, match="cut short"):
        read_rom(rom)
