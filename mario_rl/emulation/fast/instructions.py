"""The 6502's instructions as a table, and a program decoded by it once, at the start.

The processor (`processor.py`) never looks at an opcode. It reads steps: what to do, where the operand is, what it
costs. Opcodes and cycles are those of the 6502's data sheet; `+` means one cycle more when the indexed address lies in
another page than its base.

Where nes-py differs from the hardware we follow nes-py, because it is what every published agent was trained on:
- INC, DEC and the shifts at `absolute,X` pay for a crossed page (the hardware always takes 7 cycles).
- A branch into another page costs 3 cycles more than one that is not taken (the hardware: 2).
Only the 151 documented opcodes are here. The game uses no others.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Operations, in groups that the processor tells apart by their numbers. _A works on register A instead of memory.
(BPL, BMI, BVC, BVS, BCC, BCS, BNE, BEQ) = range(8)
(
    JMP, JMP_INDIRECT, JSR, RTS, RTI, BRK, PHA, PLA, PHP, PLP,
    TAX, TAY, TXA, TYA, TSX, TXS, INX, INY, DEX, DEY, ASL_A, LSR_A, ROL_A, ROR_A,
    CLC, SEC, CLI, SEI, CLV, CLD, SED, NOP, JMP_TO_ITSELF, POLL_SPRITE_ZERO, CLEAR_SPRITES, UNKNOWN,
) = range(8, 44)  # fmt: skip
(STA, STX, STY) = range(44, 47)
(ADC, SBC, AND, ORA, EOR, CMP, CPX, CPY, BIT, LDA, LDX, LDY) = range(47, 59)
(ASL, LSR, ROL, ROR, INC, DEC) = range(59, 65)
LAST_BRANCH, FIRST_WITH_OPERAND, FIRST_READER, FIRST_MODIFIER = BEQ, STA, ADC, ASL

# Modes: where an operand is. Zero page and absolute are one mode here: once decoded, both are an address. So is
# immediate: the address of the byte in the program.
(IMPLIED, DIRECT, ZERO_PAGE_X, ZERO_PAGE_Y, ABSOLUTE_X, ABSOLUTE_Y, INDIRECT_X, INDIRECT_Y) = range(8)

_DATA_SHEET = """
LDA  A9 imm 2   A5 zp 3   B5 zpx 4   AD abs 4   BD abx 4+  B9 aby 4+  A1 inx 6   B1 iny 5+
LDX  A2 imm 2   A6 zp 3   B6 zpy 4   AE abs 4   BE aby 4+
LDY  A0 imm 2   A4 zp 3   B4 zpx 4   AC abs 4   BC abx 4+
STA             85 zp 3   95 zpx 4   8D abs 4   9D abx 5   99 aby 5   81 inx 6   91 iny 6
STX             86 zp 3   96 zpy 4   8E abs 4
STY             84 zp 3   94 zpx 4   8C abs 4
ADC  69 imm 2   65 zp 3   75 zpx 4   6D abs 4   7D abx 4+  79 aby 4+  61 inx 6   71 iny 5+
SBC  E9 imm 2   E5 zp 3   F5 zpx 4   ED abs 4   FD abx 4+  F9 aby 4+  E1 inx 6   F1 iny 5+
AND  29 imm 2   25 zp 3   35 zpx 4   2D abs 4   3D abx 4+  39 aby 4+  21 inx 6   31 iny 5+
ORA  09 imm 2   05 zp 3   15 zpx 4   0D abs 4   1D abx 4+  19 aby 4+  01 inx 6   11 iny 5+
EOR  49 imm 2   45 zp 3   55 zpx 4   4D abs 4   5D abx 4+  59 aby 4+  41 inx 6   51 iny 5+
CMP  C9 imm 2   C5 zp 3   D5 zpx 4   CD abs 4   DD abx 4+  D9 aby 4+  C1 inx 6   D1 iny 5+
CPX  E0 imm 2   E4 zp 3              EC abs 4
CPY  C0 imm 2   C4 zp 3              CC abs 4
BIT             24 zp 3              2C abs 4
INC             E6 zp 5   F6 zpx 6   EE abs 6   FE abx 7+
DEC             C6 zp 5   D6 zpx 6   CE abs 6   DE abx 7+
ASL  0A acc 2   06 zp 5   16 zpx 6   0E abs 6   1E abx 7+
LSR  4A acc 2   46 zp 5   56 zpx 6   4E abs 6   5E abx 7+
ROL  2A acc 2   26 zp 5   36 zpx 6   2E abs 6   3E abx 7+
ROR  6A acc 2   66 zp 5   76 zpx 6   6E abs 6   7E abx 7+
TAX  AA - 2     TAY  A8 - 2     TXA  8A - 2     TYA  98 - 2     TSX  BA - 2     TXS  9A - 2
INX  E8 - 2     INY  C8 - 2     DEX  CA - 2     DEY  88 - 2
CLC  18 - 2     SEC  38 - 2     CLI  58 - 2     SEI  78 - 2     CLV  B8 - 2     CLD  D8 - 2     SED  F8 - 2
PHA  48 - 3     PLA  68 - 4     PHP  08 - 3     PLP  28 - 4     NOP  EA - 2
BPL  10 rel 2   BMI  30 rel 2   BVC  50 rel 2   BVS  70 rel 2
BCC  90 rel 2   BCS  B0 rel 2   BNE  D0 rel 2   BEQ  F0 rel 2
JMP  4C abs 3   6C ind 5        JSR  20 abs 6   RTS  60 - 6     RTI  40 - 6     BRK  00 - 7
"""

# notation: (mode, bytes of the instruction)
_MODES = {
    "-": (IMPLIED, 1), "acc": (IMPLIED, 1), "rel": (IMPLIED, 2), "ind": (IMPLIED, 3),
    "imm": (DIRECT, 2), "zp": (DIRECT, 2), "zpx": (ZERO_PAGE_X, 2), "zpy": (ZERO_PAGE_Y, 2),
    "abs": (DIRECT, 3), "abx": (ABSOLUTE_X, 3), "aby": (ABSOLUTE_Y, 3), "inx": (INDIRECT_X, 2), "iny": (INDIRECT_Y, 2),
}  # fmt: skip


class Instruction(NamedTuple):
    """One opcode of the data sheet."""

    name: str
    notation: str  # of its addressing mode, a key of _MODES
    operation: int
    mode: int
    length: int  # bytes
    cycles: int
    page_cycles: int  # added when the indexed address lies in another page


def _read_data_sheet() -> dict[int, Instruction]:
    instructions = {}
    name = ""
    words = iter(_DATA_SHEET.split())
    for word in words:
        if len(word) == 3:
            name = word
            continue
        notation, cycles = next(words), next(words)
        suffix = {"acc": "_A", "ind": "_INDIRECT"}.get(notation, "")
        operation = globals()[name + suffix]
        mode, length = _MODES[notation]
        instructions[int(word, 16)] = Instruction(
            name, notation, operation, mode, length, int(cycles[0]), int(cycles.endswith("+"))
        )
    return instructions


INSTRUCTIONS = _read_data_sheet()

# A step of the decoded program: an instruction with its operand.
STEP = np.dtype(
    [
        ("operation", np.uint8),
        ("cycles", np.uint8),
        ("extra_cycles", np.uint8),  # when an index leads into another page; when a branch is taken
        ("mode", np.uint8),
        ("operand", np.uint16),  # an address; where a branch leads; what a polling loop waits with
        ("next", np.uint16),  # the address of the step that follows
    ],
    align=True,
)

PROGRAM_START = 0x8000
# Loops that are done at once: two in which the game waits, which are most of its instructions, and its longest other.
# LDA $2002, AND #$40, and BNE or BEQ back to the LDA: waits until sprite 0 is not hit any more, or is hit.
_POLLING_LOOPS = {
    bytes.fromhex("AD 02 20  29 40  D0 F9"): 0x40,  # as long as it reads this, it goes on
    bytes.fromhex("AD 02 20  29 40  F0 F9"): 0x00,
}
# STA $0200,Y, four times INY, and BNE back to the STA: puts all sprites out of sight.
_CLEARING_LOOP = bytes.fromhex("99 00 02  C8 C8 C8 C8  D0 F7")


def decode(program: bytes) -> npt.NDArray[np.void]:
    """A step for every address, whether or not an instruction begins there. Outside the ROM, all are unknown."""
    steps = np.zeros(0x10000, STEP)
    steps["operation"], steps["cycles"] = UNKNOWN, 1
    steps["next"] = np.arange(1, 0x10001) & 0xFFFF
    for index, opcode in enumerate(program):
        if opcode in INSTRUCTIONS:
            address = PROGRAM_START + index
            steps[address] = _decode_one(INSTRUCTIONS[opcode], address, program[index : index + 9])
    return steps


def _decode_one(instruction: Instruction, address: int, code: bytes) -> tuple[int, ...]:
    _, notation, operation, mode, length, cycles, extra_cycles = instruction
    operand = int.from_bytes(code[1:length], "little")
    if notation == "imm":
        operand = (address + 1) & 0xFFFF
    elif notation == "rel":
        operand = (address + 2 + (operand ^ 0x80) - 0x80) & 0xFFFF
        extra_cycles = 1 if _same_page(operand, address + 2) else 3
    if operation == JMP and operand == address:
        operation = JMP_TO_ITSELF
    elif code[:7] in _POLLING_LOOPS and _same_page(address, address + 7):  # or its branch would take longer
        operation, operand = POLL_SPRITE_ZERO, _POLLING_LOOPS[code[:7]]
    elif code == _CLEARING_LOOP and _same_page(address, address + 9):
        operation = CLEAR_SPRITES
    return operation, cycles, extra_cycles, mode, operand, (address + length) & 0xFFFF


def _same_page(one: int, other: int) -> bool:
    return one & 0xFF00 == other & 0xFF00
