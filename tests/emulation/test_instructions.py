"""The 6502's instructions, checked against published facts: what the data sheet says, not what nes-py does.

`_expected` is a second, independent description of every instruction, written from the data sheet as plainly as
possible. Each test below it states one fact that implementations are known to get wrong, and the few points where we
follow nes-py instead of the hardware.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mario_rl.emulation.fast.canvas import CANVAS
from mario_rl.emulation.fast.cartridge import insert_cartridge
from mario_rl.emulation.fast.colours import COLOUR_NUMBERS
from mario_rl.emulation.fast.console import CONSOLE, power_on
from mario_rl.emulation.fast.instructions import ABSOLUTE_Y, CLEAR_SPRITES, DIRECT, INSTRUCTIONS, LDA, STA
from mario_rl.emulation.fast.processor import interrupt, run_processor
from mario_rl.emulation.rom import PATTERNS_SIZE, PROGRAM_SIZE, Rom

# Cycles of the 151 documented opcodes, by row of sixteen; 0 where an opcode is not documented. From MCS6500 tables.
PUBLISHED_CYCLES = """
7 6 0 0 0 3 5 0 3 2 2 0 0 4 6 0   2 5 0 0 0 4 6 0 2 4 0 0 0 4 7 0
6 6 0 0 3 3 5 0 4 2 2 0 4 4 6 0   2 5 0 0 0 4 6 0 2 4 0 0 0 4 7 0
6 6 0 0 0 3 5 0 3 2 2 0 3 4 6 0   2 5 0 0 0 4 6 0 2 4 0 0 0 4 7 0
6 6 0 0 0 3 5 0 4 2 2 0 5 4 6 0   2 5 0 0 0 4 6 0 2 4 0 0 0 4 7 0
0 6 0 0 3 3 3 0 2 0 2 0 4 4 4 0   2 6 0 0 4 4 4 0 2 5 2 0 0 5 0 0
2 6 2 0 3 3 3 0 2 2 2 0 4 4 4 0   2 5 0 0 4 4 4 0 2 4 2 0 4 4 4 0
2 6 0 0 3 3 5 0 2 2 2 0 4 4 6 0   2 5 0 0 0 4 6 0 2 4 0 0 0 4 7 0
2 6 0 0 3 3 5 0 2 2 2 0 4 4 6 0   2 5 0 0 0 4 6 0 2 4 0 0 0 4 7 0
"""
N, V, D, I, Z, C = "NVDIZC"  # noqa: E741 (the data sheet calls it I)


class Machine:
    """One console with a small program at 0x8000."""

    def __init__(self, code, at=0x8000, fill=0x02, patterns=bytes(PATTERNS_SIZE)):
        program = bytearray([fill]) * PROGRAM_SIZE
        for address, content in {at: code}.items() if isinstance(code, (bytes, str)) else code.items():
            content = bytes.fromhex(content) if isinstance(content, str) else content
            program[address - 0x8000 : address - 0x8000 + len(content)] = content
        self.cartridge = insert_cartridge(Rom(bytes(program), patterns), COLOUR_NUMBERS)
        self._canvas = np.zeros(1, CANVAS)
        self.consoles = np.zeros(1, CONSOLE)
        power_on(self.consoles, at)
        self.ram = self.consoles["ram"][0]

    def __getitem__(self, name):
        return int(self.consoles[name][0])

    def __setitem__(self, name, value):
        self.consoles[name] = value

    def run(self, instructions=1):
        """Execute; the cycles it took."""
        begun = self["cycle"]
        for _ in range(instructions):
            run_processor(self.consoles[0], self.cartridge[0], self._canvas[0], self["cycle"] + 1)
        return self["cycle"] - begun

    def interrupt(self):
        interrupt(self.consoles[0], self.cartridge[0])

    @property
    def flags(self):
        result = self["result"]
        return {
            flag
            for flag, is_set in (
                (N, result & 0x180),
                (Z, not result & 0xFF),
                (C, self["carry"]),
                (V, self["overflow"]),
                (I, self["others"] & 0x20),
                (D, self["others"] & 0x10),
            )
            if is_set
        }

    @flags.setter
    def flags(self, flags):
        self["result"] = (0x100 if N in flags else 0) | (0 if Z in flags else 1)
        self["carry"] = C in flags
        self["overflow"] = 2 if V in flags else 0
        self["others"] = 0x04 | (0x20 if I in flags else 0) | (0x10 if D in flags else 0)


def _signed(byte):
    return byte - 0x100 if byte & 0x80 else byte


def _expected(name, a, x, y, value, flags):
    """What the data sheet says: (a, x, y, value written back or None, flags)."""
    flags = set(flags)
    carry = int(C in flags)

    def set_flag(flag, is_set):
        flags.add(flag) if is_set else flags.discard(flag)

    def result_is(result):
        set_flag(Z, result == 0)
        set_flag(N, result >= 0x80)
        return result

    written = None
    if name in ("LDA", "LDX", "LDY"):
        result_is(value)
        a, x, y = (value if name == "LDA" else a), (value if name == "LDX" else x), (value if name == "LDY" else y)
    elif name in ("STA", "STX", "STY"):
        written = {"STA": a, "STX": x, "STY": y}[name]
    elif name == "ADC":
        signed = _signed(a) + _signed(value) + carry
        set_flag(V, not -128 <= signed <= 127)
        set_flag(C, a + value + carry > 0xFF)
        a = result_is((a + value + carry) & 0xFF)
    elif name == "SBC":
        signed = _signed(a) - _signed(value) - (1 - carry)
        set_flag(V, not -128 <= signed <= 127)
        set_flag(C, a - value - (1 - carry) >= 0)
        a = result_is((a - value - (1 - carry)) & 0xFF)
    elif name in ("AND", "ORA", "EOR"):
        a = result_is({"AND": a & value, "ORA": a | value, "EOR": a ^ value}[name])
    elif name in ("CMP", "CPX", "CPY"):
        register = {"CMP": a, "CPX": x, "CPY": y}[name]
        set_flag(C, register >= value)
        result_is((register - value) & 0xFF)
    elif name == "BIT":
        set_flag(Z, a & value == 0)
        set_flag(N, value & 0x80)
        set_flag(V, value & 0x40)
    elif name in ("INC", "DEC"):
        written = result_is((value + (1 if name == "INC" else -1)) & 0xFF)
    elif name in ("ASL", "ROL"):
        set_flag(C, value & 0x80)
        written = result_is((value * 2) % 0x100 + (carry if name == "ROL" else 0))
    elif name in ("LSR", "ROR"):
        set_flag(C, value & 0x01)
        written = result_is(value // 2 + (0x80 * carry if name == "ROR" else 0))
    return a, x, y, written, flags


OPERATIONS = sorted({i.name for i in INSTRUCTIONS.values() if i.notation == "zp"})
BYTES = st.integers(0, 0xFF)
FLAGS = st.sets(st.sampled_from((N, V, D, I, Z, C)))
MACHINES = dict.fromkeys(OPERATIONS)


def _zero_page_machine(name):
    if MACHINES[name] is None:
        opcode = next(code for code, i in INSTRUCTIONS.items() if i.name == name and i.notation == "zp")
        MACHINES[name] = Machine(bytes([opcode, 0x40]))
    return MACHINES[name]


def test_opcodes_and_cycles_are_the_published_ones():
    published = [int(word) for word in PUBLISHED_CYCLES.split()]
    ours = [INSTRUCTIONS[opcode].cycles if opcode in INSTRUCTIONS else 0 for opcode in range(0x100)]
    assert ours == published
    assert len(INSTRUCTIONS) == 151


@pytest.mark.parametrize("name", OPERATIONS)
@settings(max_examples=60)
@given(a=BYTES, x=BYTES, y=BYTES, value=BYTES, flags=FLAGS)
def test_an_operation_does_what_the_data_sheet_says(name, a, x, y, value, flags):
    machine = _zero_page_machine(name)
    machine["pc"], machine["a"], machine["x"], machine["y"] = 0x8000, a, x, y
    machine.flags = flags
    machine.ram[0x40] = value
    machine.run()
    *registers, written, expected_flags = _expected(name, a, x, y, value, flags)
    assert [machine["a"], machine["x"], machine["y"]] == registers
    assert machine.ram[0x40] == (value if written is None else written)
    assert machine.flags == expected_flags
    assert machine["pc"] == 0x8002


@pytest.mark.parametrize("opcode", [code for code, i in INSTRUCTIONS.items() if i.notation == "acc"])
@pytest.mark.parametrize("carry", [0, 1])
def test_shifts_of_the_accumulator_equal_those_of_memory(opcode, carry):
    name = INSTRUCTIONS[opcode].name
    for value in (0x00, 0x01, 0x7F, 0x80, 0x81, 0xFF):
        machine = Machine(bytes([opcode]))
        machine["a"] = value
        machine.flags = {C} if carry else set()
        assert machine.run() == 2
        _, _, _, written, flags = _expected(name, 0, 0, 0, value, {C} if carry else set())
        assert (machine["a"], machine.flags) == (written, flags)


@pytest.mark.parametrize(
    ("opcode", "cell"),
    [
        (0xA5, 0x0010),  # zero page
        (0xB5, 0x0015),  # zero page,X
        (0xAD, 0x0310),  # absolute
        (0xBD, 0x0315),  # absolute,X
        (0xB9, 0x0317),  # absolute,Y
        (0xA1, 0x0420),  # (indirect,X)
        (0xB1, 0x0427),  # (indirect),Y
    ],
)
def test_every_addressing_mode_finds_its_operand(opcode, cell):
    machine = Machine(bytes([opcode, 0x10, 0x03]))
    machine["x"], machine["y"] = 5, 7
    machine.ram[0x15], machine.ram[0x16] = 0x20, 0x04  # the pointer at 0x10 + X
    machine.ram[0x10], machine.ram[0x11] = 0x20, 0x04  # the pointer at 0x10
    machine.ram[cell] = 0x5A
    machine.run()
    assert machine["a"] == 0x5A


def test_an_index_wraps_around_in_the_zero_page():
    machine = Machine("B5 F0")  # LDA $F0,X
    machine["x"], machine.ram[0x10], machine.ram[0x110] = 0x20, 0x11, 0x99
    assert machine.run() == 4
    assert machine["a"] == 0x11
    machine = Machine("B6 F0")  # LDX $F0,Y
    machine["y"], machine.ram[0x10] = 0x20, 0x22
    machine.run()
    assert machine["x"] == 0x22


def test_pointers_wrap_around_in_the_zero_page():
    machine = Machine("A1 FE")  # LDA ($FE,X)
    machine["x"] = 1
    machine.ram[0xFF], machine.ram[0x00] = 0x34, 0x02
    machine.ram[0x234] = 0x77
    assert machine.run() == 6
    assert machine["a"] == 0x77
    machine = Machine("B1 FF")  # LDA ($FF),Y
    machine["y"] = 1
    machine.ram[0xFF], machine.ram[0x00] = 0x34, 0x02
    machine.ram[0x235] = 0x78
    assert machine.run() == 5
    assert machine["a"] == 0x78


def test_an_address_wraps_around_after_the_last_byte():
    machine = Machine("BD F0 FF")  # LDA $FFF0,X
    machine["x"], machine.ram[0x0F] = 0x1F, 0x42
    machine.run()
    assert machine["a"] == 0x42


def test_ram_repeats_every_two_kilobytes():
    machine = Machine("8D 23 18")  # STA $1823
    machine["a"] = 0x66
    machine.run()
    assert machine.ram[0x23] == 0x66


@pytest.mark.parametrize(
    ("code", "inside", "crossing"),
    [
        ("BD F0 02", 4, 5),  # LDA absolute,X
        ("B9 F0 02", 4, 5),  # LDA absolute,Y
        ("BE F0 02", 4, 5),  # LDX absolute,Y
        ("B1 40", 5, 6),  # LDA (indirect),Y
        ("9D F0 02", 5, 5),  # STA absolute,X always takes the time
        ("99 F0 02", 5, 5),
        ("91 40", 6, 6),
        ("FE F0 02", 7, 8),  # INC absolute,X: nes-py's way; 7 on the hardware
        ("1E F0 02", 7, 8),  # ASL absolute,X: nes-py's way; 7 on the hardware
    ],
)
def test_a_crossed_page_costs_a_cycle_where_the_data_sheet_says_so(code, inside, crossing):
    for index, expected in ((0x0F, inside), (0x10, crossing)):
        machine = Machine(code)
        machine["x"] = machine["y"] = index
        machine.ram[0x40], machine.ram[0x41] = 0xF0, 0x02
        assert machine.run() == expected


BRANCHES = {0x10: (N, False), 0x30: (N, True), 0x50: (V, False), 0x70: (V, True),
            0x90: (C, False), 0xB0: (C, True), 0xD0: (Z, False), 0xF0: (Z, True)}  # fmt: skip


@pytest.mark.parametrize("opcode", BRANCHES)
def test_a_branch_asks_for_its_flag(opcode):
    flag, wanted = BRANCHES[opcode]
    for flags in ({flag}, set()):
        machine = Machine(bytes([opcode, 0x10]))
        machine.flags = flags
        taken = (flag in flags) == wanted
        assert machine.run() == (3 if taken else 2)
        assert machine["pc"] == (0x8012 if taken else 0x8002)


def test_a_branch_counts_from_the_next_instruction_and_backwards():
    machine = Machine("D0 80", at=0x8100)  # BNE -128
    machine.flags = set()
    # Into another page: 2 + 3 in nes-py; 2 + 2 on the hardware.
    assert machine.run() == 5
    assert machine["pc"] == 0x8102 - 128
    machine = Machine("D0 00", at=0x80FE)  # the next instruction is in the next page; so is the target
    machine.flags = set()
    assert machine.run() == 3
    assert machine["pc"] == 0x8100


def test_an_indirect_jump_does_not_carry_into_the_page_of_its_pointer():
    machine = Machine("6C FF 02")  # JMP ($02FF)
    machine.ram[0x2FF], machine.ram[0x200], machine.ram[0x300] = 0x34, 0x90, 0xA0
    assert machine.run() == 5
    assert machine["pc"] == 0x9034


def test_a_subroutine_returns_behind_its_call():
    machine = Machine({0x8000: "20 00 90", 0x9000: "60"})  # JSR $9000; RTS
    machine["sp"] = 0xFD
    assert machine.run() == 6
    assert (machine["pc"], machine["sp"]) == (0x9000, 0xFB)
    assert list(machine.ram[0x1FC:0x1FE]) == [0x02, 0x80]  # the address of the call's last byte
    assert machine.run() == 6
    assert (machine["pc"], machine["sp"]) == (0x8003, 0xFD)


def test_the_stack_wraps_around():
    machine = Machine("48 48 68 68")  # PHA PHA PLA PLA
    machine["sp"], machine["a"] = 0x00, 0x12
    machine.run(2)
    assert (machine.ram[0x100], machine.ram[0x1FF], machine["sp"]) == (0x12, 0x12, 0xFE)
    machine["a"] = 0x99
    machine.ram[0x1FF] = 0x80
    machine.run()
    assert (machine["a"], machine.flags & {N, Z}) == (0x80, {N})
    machine.run()
    assert (machine["a"], machine["sp"]) == (0x12, 0x00)


@given(flags=FLAGS)
def test_flags_survive_the_stack(flags):
    machine = Machine("08 28")  # PHP PLP
    machine.flags = flags
    machine.run()
    pushed = int(machine.ram[0x1FD])
    # nes-py's order from bit 0 on: N V 1 B D I Z C; on the hardware it is the other way round.
    assert {flag for bit, flag in enumerate((N, V, None, None, D, I, Z, C)) if flag and pushed >> bit & 1} == flags
    machine.flags = set()
    machine.run()
    assert machine.flags == flags


def test_flag_instructions_change_one_flag():
    for code, flag, is_set in (
        ("18", C, 0),
        ("38", C, 1),
        ("58", I, 0),
        ("78", I, 1),
        ("B8", V, 0),
        ("D8", D, 0),
        ("F8", D, 1),
    ):
        for before in (set(), {N, V, D, I, Z, C} - {Z}):
            machine = Machine(code)
            machine.flags = before
            assert machine.run() == 2
            assert machine.flags == (before | {flag} if is_set else before - {flag})


def test_transfers_and_counters_set_the_flags_but_for_the_stack_pointer():
    machine = Machine("AA A8 8A 98 BA 9A")  # TAX TAY TXA TYA TSX TXS
    machine["a"], machine["sp"] = 0x80, 0x00
    machine.run(2)
    assert (machine["x"], machine["y"], machine.flags & {N, Z}) == (0x80, 0x80, {N})
    machine["x"], machine["y"] = 0x12, 0x00
    machine.run()
    assert (machine["a"], machine.flags & {N, Z}) == (0x12, set())
    machine.run()
    assert (machine["a"], machine.flags & {N, Z}) == (0x00, {Z})
    machine.run()
    assert (machine["x"], machine.flags & {N, Z}) == (0x00, {Z})
    machine["x"] = 0x80
    machine.run()
    assert (machine["sp"], machine.flags & {N, Z}) == (0x80, {Z})
    for code, register, start, end in (
        ("E8", "x", 0xFF, 0),
        ("C8", "y", 0x7F, 0x80),
        ("CA", "x", 0, 0xFF),
        ("88", "y", 1, 0),
    ):
        machine = Machine(code)
        machine[register] = start
        machine.run()
        assert machine[register] == end
        assert machine.flags & {N, Z} == ({N} if end >= 0x80 else {Z} if end == 0 else set())


def test_there_is_no_decimal_mode():
    machine = Machine("69 05")  # ADC #5
    machine["a"] = 0x09
    machine.flags = {D}
    machine.run()
    assert machine["a"] == 0x0E


def test_an_interrupt_comes_between_two_instructions_and_takes_seven_cycles():
    machine = Machine({0x8000: "EA", 0x9000: "40", 0xFFFA: "00 90"})  # NOP; RTI at the vector's target
    machine.flags = {C}
    before = machine["cycle"]
    machine.interrupt()
    assert (machine["pc"], machine["cycle"] - before, machine["sp"]) == (0x9000, 7, 0xFA)
    assert list(machine.ram[0x1FC:0x1FE]) == [0x00, 0x80]
    assert machine.ram[0x1FB] == 0x80 | 0x20 | 0x04  # C, what nes-py takes for the constant 1, and its own constant 1
    assert I in machine.flags
    machine.run()
    assert (machine["pc"], machine["sp"]) == (0x8000, 0xFD)
    assert C in machine.flags


def test_a_break_goes_through_its_own_vector_and_skips_a_byte():
    machine = Machine({0x8000: "00", 0xFFFE: "00 A0"})
    assert (
        machine.run() == 14
    )  # nes-py counts the interrupt's 7 cycles on top of the instruction's 7; the hardware does not
    assert machine["pc"] == 0xA000
    assert list(machine.ram[0x1FC:0x1FE]) == [0x02, 0x80]
    assert machine.ram[0x1FB] & 0x30 == 0x30  # the constant 1 and B


def test_sprite_copies_take_513_cycles_and_one_more_on_an_odd_one():
    for idle, expected in (("", 513 + 4 + 1), ("A5 00 ", 513 + 4)):  # LDA zero page takes three cycles
        machine = Machine(idle + "8D 14 40")  # STA $4014
        machine["a"] = 0x02
        machine.ram[0x200:0x300] = np.arange(0x100)
        if idle:
            machine.run()
            machine["a"] = 0x02
        assert machine.run() == expected
        assert np.array_equal(machine.consoles["sprites"][0], np.arange(0x100))


def test_a_jump_to_itself_passes_the_time_exactly():
    for stop in range(1, 20):
        machine = Machine("4C 00 80")  # JMP $8000
        run_processor(machine.consoles[0], machine.cartridge[0], machine._canvas[0], stop)
        assert machine["pc"] == 0x8000
        assert machine["cycle"] == -(-stop // 3) * 3  # the first turn's end that is not before `stop`


def test_an_unknown_opcode_is_noticed():
    machine = Machine("02")
    machine.run()
    assert machine["strayed"]
    machine = Machine("4C 00 03")  # JMP into RAM
    machine.run(2)
    assert machine["strayed"]


def test_an_undisturbed_program_is_not_called_strayed():
    machine = Machine("A9 01 8D 00 40")  # sound registers are ignored
    machine.run(2)
    assert not machine["strayed"]


@pytest.mark.parametrize("start", [0x00, 0x04, 0xFC, 0x01])
@pytest.mark.parametrize("stop", [1, 6, 40, 300, 1019, 1024, 1025, 5000])
def test_a_loop_done_at_once_equals_its_turns(start, stop):
    """STA $0200,Y, four INY, BNE; in the second machine the STA is an ordinary one again."""
    loop = Machine("99 00 02 C8 C8 C8 C8 D0 F7 4C 09 80")
    plain = Machine("99 00 02 C8 C8 C8 C8 D0 F7 4C 09 80")
    assert loop.cartridge["steps"][0, 0x8000]["operation"] == CLEAR_SPRITES
    plain.cartridge["steps"][0, 0x8000]["operation"] = STA
    plain.cartridge["steps"][0, 0x8000]["mode"] = ABSOLUTE_Y
    for machine in (loop, plain):
        machine["a"], machine["y"] = 0xF8, start
        run_processor(machine.consoles[0], machine.cartridge[0], machine._canvas[0], stop)
    assert loop.consoles.tobytes() == plain.consoles.tobytes()


@pytest.mark.parametrize("branch", ["D0", "F0"])
@pytest.mark.parametrize("vblank", [0, 1])
def test_polling_at_once_equals_polling_turn_by_turn(branch, vblank):
    """For every length of time around the moments at which the flag is set and cleared."""
    code = f"AD 02 20 29 40 {branch} F9 4C 07 80"  # LDA $2002, AND #$40, branch back; then wait
    machines = [Machine(code, patterns=b"\xff" * PATTERNS_SIZE) for _ in range(2)]
    machines[1].cartridge["steps"][0, 0x8000] = (LDA, 4, 0, DIRECT, 0x2002, 0x8003)
    for stop in [*range(1, 900, 7), *range(1200, 2400, 5)]:
        for machine in machines:
            power_on(machine.consoles, 0x8000)
            machine["vblank"] = vblank
            machine["sprite_zero_hit"] = branch == "D0"
            machine.consoles["sprites"][0, 0] = 3  # sprite 0 begins in line 4
            machine["dot"] = 0
            machine["picture_start"] = 400  # the flags are cleared at dot 400, the sprite is met some lines later
            run_processor(machine.consoles[0], machine.cartridge[0], machine._canvas[0], stop)
        fields = ("pc", "a", "cycle", "result", "carry", "vblank", "second_write")
        assert [machines[0][field] for field in fields] == [machines[1][field] for field in fields], stop
