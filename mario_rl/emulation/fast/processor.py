"""The 6502: runs the decoded program until a given cycle. Compiled.

An instruction takes effect at its first cycle; the others pass before the next begins (nes-py's way, and fine for this
game, which never depends on what happens inside one). Registers live in local variables while the loop runs.

Of the flags, C and V have variables of their own. N and Z are worked out, when a branch asks, from the result that they
come from: Z when its low eight bits are zero, N when bit 7 is set (or bit 8, where N is not the result's own). The
flags that are not asked for are in `others`. When flags are pushed, nes-py's byte has its bits in the opposite order of
the hardware's, NV1BDIZC from bit 0 on; the stack is RAM, so we do the same.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.fast.canvas import Canvas
from mario_rl.emulation.fast.cartridge import Cartridge
from mario_rl.emulation.fast.console import Console
from mario_rl.machine.compiling import compiled

# isort: off
from mario_rl.emulation.fast.instructions import (
    ABSOLUTE_X, ABSOLUTE_Y, ADC, AND, ASL, ASL_A, BCC, BCS, BEQ, BIT, BMI, BNE, BPL, BRK, BVC, CLC, CLD,
    CLEAR_SPRITES, CLI, CLV, CMP, CPX, CPY, DEC, DEX, DEY, DIRECT, EOR, FIRST_MODIFIER, FIRST_READER,
    FIRST_WITH_OPERAND, INC, INDIRECT_Y, INX, INY, JMP, JMP_INDIRECT, JMP_TO_ITSELF, JSR, LAST_BRANCH, LDA, LDX, LDY,
    LSR, LSR_A, ORA, PHA, PHP, PLA, PLP, POLL_SPRITE_ZERO, ROL, ROL_A, ROR_A, RTI, RTS, SBC, SEC, SED, SEI, STA, STX,
    TAX, TAY, TSX, TXA, TXS, TYA, UNKNOWN, ZERO_PAGE_X, ZERO_PAGE_Y,
)  # fmt: skip

# isort: on
from mario_rl.emulation.fast.registers import poll_sprite_zero, read_register, write_register

NEGATIVE, OVERFLOW, DECIMAL, INTERRUPT_DISABLE, ZERO, CARRY = 0x01, 0x02, 0x10, 0x20, 0x40, 0x80
OTHERS = 0xFF & ~(NEGATIVE | OVERFLOW | ZERO | CARRY)

Int: Any = np.int64  # what a byte becomes when it is read: numba makes a float of uint64 + int64
STACK = 0x0100
NMI_VECTOR, IRQ_VECTOR = 0xFFFA, 0xFFFE
INTERRUPT_CYCLES = 7
# One turn of the loops that are done at once, the branch taken, and how many bytes follow the STA.
POLL_CYCLES, CLEAR_CYCLES, CLEAR_LENGTH = 4 + 2 + 3, 5 + 4 * 2 + 3, 6


@compiled
def run_processor(console: Console, cartridge: Cartridge, canvas: Canvas, stop: int) -> None:
    """Execute instructions as long as they begin before cycle `stop`."""
    ram, steps, program = console.ram, cartridge.steps, cartridge.program
    pc, a, x, y, cycle = console.pc, console.a, console.x, console.y, console.cycle
    result, carry = console.result, console.carry

    while cycle < stop:
        step = steps[pc & 0xFFFF]
        operation = Int(step.operation)
        operand = Int(step.operand)
        pc = step.next
        cost = Int(step.cycles)

        if operation <= LAST_BRANCH:
            # Shall it be taken?
            if operation == BNE:
                taken = result & 0xFF != 0
            elif operation == BEQ:
                taken = result & 0xFF == 0
            elif operation == BCC:
                taken = carry == 0
            elif operation == BCS:
                taken = carry != 0
            elif operation == BPL:
                taken = result & 0x180 == 0
            elif operation == BMI:
                taken = result & 0x180 != 0
            elif operation == BVC:
                taken = console.overflow == 0
            else:  # BVS
                taken = console.overflow != 0
            if taken:
                pc = operand
                cost += step.extra_cycles
        elif operation < FIRST_WITH_OPERAND:
            # Jumps, the stack, registers, flags.
            if operation == JMP:
                pc = operand
            elif operation == JSR:  # pushes the address of its own last byte; RTS adds one
                ram[STACK | console.sp] = (pc - 1) >> 8
                ram[STACK | (console.sp - 1) & 0xFF] = (pc - 1) & 0xFF
                console.sp = (console.sp - 2) & 0xFF
                pc = operand
            elif operation == RTS:
                pc = (ram[STACK | (console.sp + 1) & 0xFF] + 256 * ram[STACK | (console.sp + 2) & 0xFF]) + 1 & 0xFFFF
                console.sp = (console.sp + 2) & 0xFF
            elif operation == JMP_INDIRECT:  # the 6502 does not carry into the pointer's page
                high = operand & 0xFF00 | (operand + 1) & 0xFF
                pc = _read_memory(console, cartridge, operand) + 256 * _read_memory(console, cartridge, high)
            elif operation == PHA:
                ram[STACK | console.sp] = a
                console.sp = (console.sp - 1) & 0xFF
            elif operation == PLA:
                console.sp = (console.sp + 1) & 0xFF
                a = result = Int(ram[STACK | console.sp])
            elif operation == PHP:
                ram[STACK | console.sp] = _pack_status(console, result, carry)
                console.sp = (console.sp - 1) & 0xFF
            elif operation == PLP or operation == RTI:
                console.sp = (console.sp + 1) & 0xFF
                status = Int(ram[STACK | console.sp])
                result = (status & NEGATIVE) << 8 | (status & ZERO) ^ ZERO
                carry = (status & CARRY) >> 7
                console.overflow = status & OVERFLOW
                console.others = status & OTHERS
                if operation == RTI:
                    pc = ram[STACK | (console.sp + 1) & 0xFF] + 256 * ram[STACK | (console.sp + 2) & 0xFF]
                    console.sp = (console.sp + 2) & 0xFF
            elif operation == TAX:
                x = result = a
            elif operation == TAY:
                y = result = a
            elif operation == TXA:
                a = result = x
            elif operation == TYA:
                a = result = y
            elif operation == TSX:
                x = result = console.sp
            elif operation == TXS:
                console.sp = x
            elif operation == INX:
                x = result = (x + 1) & 0xFF
            elif operation == INY:
                y = result = (y + 1) & 0xFF
            elif operation == DEX:
                x = result = (x - 1) & 0xFF
            elif operation == DEY:
                y = result = (y - 1) & 0xFF
            elif operation == ASL_A:
                carry = a >> 7
                a = result = (a << 1) & 0xFF
            elif operation == LSR_A:
                carry = a & 1
                a = result = a >> 1
            elif operation == ROL_A:
                rotated = (a << 1) & 0xFF | carry
                carry = a >> 7
                a = result = rotated
            elif operation == ROR_A:
                rotated = a >> 1 | carry << 7
                carry = a & 1
                a = result = rotated
            elif operation == CLC:
                carry = 0
            elif operation == SEC:
                carry = 1
            elif operation == CLV:
                console.overflow = 0
            elif operation == CLI:
                console.others &= ~INTERRUPT_DISABLE
            elif operation == SEI:
                console.others |= INTERRUPT_DISABLE
            elif operation == CLD:
                console.others &= ~DECIMAL
            elif operation == SED:
                console.others |= DECIMAL
            elif operation == JMP_TO_ITSELF:  # all turns that begin before `stop`, at once
                pc = operand
                cost += (stop - 1 - cycle) // 3 * 3
            elif operation == POLL_SPRITE_ZERO:  # LDA $2002, after all turns that read the same
                value = read_register(console, cartridge, canvas, 0x2002, cycle)
                if value & 0x40 == operand:
                    turns = poll_sprite_zero(console, cartridge, canvas, cycle, stop, POLL_CYCLES)
                    if turns > 0:
                        value &= 0x7F  # the first reading has cleared the vertical blank flag
                        cost += turns * POLL_CYCLES
                a = result = value
            elif operation == CLEAR_SPRITES:  # STA $0200,Y, or the whole loop if it ends before `stop`
                ram[0x200 | y] = a
                turns = (0x100 - y) // 4
                if y & 3 == 0 and cycle + turns * CLEAR_CYCLES < stop:
                    for sprite in range(y, 0x100, 4):
                        ram[0x200 | sprite] = a
                    y = result = 0
                    pc += CLEAR_LENGTH
                    cost = turns * CLEAR_CYCLES - 1  # the last branch is not taken
            elif operation == BRK:
                # Bits 5 and 4, the hardware's constant 1 and B; in nes-py's reversed byte these are I and D.
                status = _pack_status(console, result, carry) | INTERRUPT_DISABLE | DECIMAL
                console.sp = _push_interrupt(ram, console.sp, pc + 1 & 0xFFFF, status)
                console.others |= INTERRUPT_DISABLE
                pc = program[IRQ_VECTOR & 0x7FFF] + 256 * program[(IRQ_VECTOR + 1) & 0x7FFF]
                cost += INTERRUPT_CYCLES  # nes-py counts them on top of the instruction's own 7
            elif operation == UNKNOWN:
                console.strayed = 1
        else:
            # Where is the operand?
            mode = step.mode
            if mode == DIRECT:
                address = operand
            elif mode == ABSOLUTE_X:
                address = (operand + x) & 0xFFFF
                if (address ^ operand) & 0xFF00:
                    cost += step.extra_cycles
            elif mode == ABSOLUTE_Y:
                address = (operand + y) & 0xFFFF
                if (address ^ operand) & 0xFF00:
                    cost += step.extra_cycles
            elif mode == ZERO_PAGE_X:
                address = (operand + x) & 0xFF
            elif mode == INDIRECT_Y:
                base = ram[operand & 0xFF] + 256 * ram[(operand + 1) & 0xFF]
                address = (base + y) & 0xFFFF
                if (address ^ base) & 0xFF00:
                    cost += step.extra_cycles
            elif mode == ZERO_PAGE_Y:
                address = (operand + y) & 0xFF
            else:  # INDIRECT_X
                address = ram[(operand + x) & 0xFF] + 256 * ram[(operand + x + 1) & 0xFF]
            if operation < FIRST_READER:
                stored = a if operation == STA else x if operation == STX else y
            else:
                # What is it?
                if address < 0x2000:
                    value = Int(ram[address & 0x7FF])
                elif address >= 0x8000:
                    value = Int(program[address & 0x7FFF])
                else:
                    value = read_register(console, cartridge, canvas, address, cycle)
                # What is done with it?
                if operation == LDA:
                    a = result = value
                elif operation == LDX:
                    x = result = value
                elif operation == LDY:
                    y = result = value
                elif operation == CMP:
                    carry = Int(a >= value)
                    result = (a - value) & 0xFF
                elif operation == CPX:
                    carry = Int(x >= value)
                    result = (x - value) & 0xFF
                elif operation == CPY:
                    carry = Int(y >= value)
                    result = (y - value) & 0xFF
                elif operation == AND:
                    a = result = a & value
                elif operation == ORA:
                    a = result = a | value
                elif operation == EOR:
                    a = result = a ^ value
                elif operation == ADC:
                    total = a + value + carry
                    console.overflow = OVERFLOW if (a ^ total) & (value ^ total) & 0x80 else 0
                    carry = total >> 8
                    a = result = total & 0xFF
                elif operation == SBC:  # an addition of the complement; the NES has no decimal mode
                    complement = value ^ 0xFF
                    total = a + complement + carry
                    console.overflow = OVERFLOW if (a ^ total) & (complement ^ total) & 0x80 else 0
                    carry = total >> 8
                    a = result = total & 0xFF
                elif operation == BIT:
                    result = a & value | (value & 0x80) << 1
                    console.overflow = OVERFLOW if value & 0x40 else 0
                elif operation == INC:
                    result = (value + 1) & 0xFF
                elif operation == DEC:
                    result = (value - 1) & 0xFF
                elif operation == ASL:
                    carry, result = value >> 7, (value << 1) & 0xFF
                elif operation == LSR:
                    carry, result = value & 1, value >> 1
                elif operation == ROL:
                    carry, result = value >> 7, (value << 1) & 0xFF | carry
                else:  # ROR
                    carry, result = value & 1, value >> 1 | carry << 7
                stored = result
            # Is something written back?
            if operation < FIRST_READER or operation >= FIRST_MODIFIER:
                if address < 0x2000:
                    ram[address & 0x7FF] = stored
                else:
                    cost += write_register(console, cartridge, canvas, address, stored, cycle)
        cycle += cost

    console.pc, console.a, console.x, console.y, console.cycle = pc, a, x, y, cycle
    console.result, console.carry = result, carry


@compiled
def interrupt(console: Console, cartridge: Cartridge) -> None:
    """The vertical blank's interrupt (NMI): before the next instruction, which begins 7 cycles later."""
    # nes-py sets bit 5 in the byte it pushes, the hardware's constant 1; in its reversed byte that is the I flag.
    status = _pack_status(console, console.result, console.carry) | INTERRUPT_DISABLE
    console.sp = _push_interrupt(console.ram, console.sp, console.pc, status)
    console.others |= INTERRUPT_DISABLE
    program = cartridge.program
    console.pc = program[NMI_VECTOR & 0x7FFF] + 256 * program[(NMI_VECTOR + 1) & 0x7FFF]
    console.cycle += INTERRUPT_CYCLES


@compiled
def _push_interrupt(ram: npt.NDArray[np.uint8], sp: int, pc: int, status: int) -> int:
    ram[STACK | sp] = pc >> 8
    ram[STACK | (sp - 1) & 0xFF] = pc & 0xFF
    ram[STACK | (sp - 2) & 0xFF] = status
    return (sp - 3) & 0xFF


@compiled
def _pack_status(console: Console, result: int, carry: int) -> int:
    return (
        (NEGATIVE if result & 0x180 else 0)
        | console.overflow
        | console.others
        | (0 if result & 0xFF else ZERO)
        | carry << 7
    )


@compiled
def _read_memory(console: Console, cartridge: Cartridge, address: int) -> int:
    if address < 0x2000:
        return Int(console.ram[address & 0x7FF])
    if address < 0x8000:  # a register
        console.strayed = 1
    return Int(cartridge.program[address & 0x7FFF])
