"""The 6502: runs the decoded program until a given cycle. Compiled.

An instruction takes effect at its first cycle; the others pass before the next begins (nes-py's way, and fine for this
game, which never depends on what happens inside one). Registers live in local variables while the loop runs.

The status register has four flags that matter. N and Z are kept as the results they come from (`negative`, `zeroed`)
and worked out when somebody asks. The rest is in `others`. When the status is pushed, nes-py's byte has its bits in the
opposite order of the hardware's, NV1BDIZC from bit 0 on; the stack is RAM, so we do the same.
"""

import numpy as np

from mario_rl.emulation.fast.cartridge import Cartridge
from mario_rl.emulation.fast.compiling import compiled
from mario_rl.emulation.fast.console import Console
from mario_rl.emulation.fast.instructions import (
    ABSOLUTE_X, ABSOLUTE_Y, ADC, AND, ASL, ASL_A, BCC, BCS, BEQ, BIT, BMI, BNE, BPL, BRK, BVC, BVS, CLC, CLD, CLI, CLV,
    CMP, CPX, CPY, DEC, DEX, DEY, DIRECT, EOR, FIRST_READER, IMMEDIATE, IMPLIED, INC, INDIRECT_X, INDIRECT_Y, INX, INY,
    JMP, JMP_INDIRECT, JMP_TO_ITSELF, JSR, LDA, LDX, LDY, LSR, LSR_A, NOP, ORA, PHA, PHP, PLA, PLP, POLL_SPRITE_ZERO,
    ROL, ROL_A, ROR, ROR_A, RTI, RTS, SBC, SEC, SED, SEI, STA, STX, STY, TAX, TAY, TSX, TXA, TXS, TYA, UNKNOWN, ZERO_PAGE_X,
    ZERO_PAGE_Y,
)  # fmt: skip
from mario_rl.emulation.fast.registers import poll_sprite_zero, read_register, write_register

NEGATIVE, OVERFLOW, DECIMAL, INTERRUPT_DISABLE, ZERO, CARRY = 0x01, 0x02, 0x10, 0x20, 0x40, 0x80
OTHERS = 0xFF & ~(NEGATIVE | OVERFLOW | ZERO | CARRY)

STACK = 0x0100
NMI_VECTOR, IRQ_VECTOR = 0xFFFA, 0xFFFE
NMI_CYCLES = 7
POLL_CYCLES = 4 + 2 + 3  # one turn of the polling loop: LDA, AND, a taken branch


@compiled
def run_processor(console: Console, cartridge: Cartridge, stop: int) -> None:
    """Execute instructions as long as they begin before cycle `stop`."""
    ram, steps, program = console.ram, cartridge.steps, cartridge.program
    pc, a, x, y, cycle = console.pc, console.a, console.x, console.y, console.cycle
    result, carry = console.result, console.carry

    while cycle < stop:
        step = steps[pc & 0xFFFF]
        operation = np.int64(step.operation)
        operand = step.operand
        pc = step.next
        cost = np.int64(step.cycles)

        # Where is the operand?
        address = 0
        value = 0
        if operation >= STA:
            address = (operand + (x & step.x_mask) + (y & step.y_mask)) & step.address_mask
            if (address ^ operand) & 0xFF00:
                cost += step.extra_cycles
            if step.special:
                if step.special == 2:
                    base = ram[operand & 0xFF] + 256 * ram[(operand + 1) & 0xFF]
                    address = (base + y) & 0xFFFF
                    if (address ^ base) & 0xFF00:
                        cost += step.extra_cycles
                elif step.special == 3:
                    address = ram[(operand + x) & 0xFF] + 256 * ram[(operand + x + 1) & 0xFF]
            value = ram[address & 0x7FF]
            in_rom = program[address & 0x7FFF]
            if address & 0x8000:
                value = in_rom
            if step.special and operation >= FIRST_READER and 0x2000 <= address < 0x8000:
                value = read_register(console, cartridge, address, cycle)

        # What is done with it?
        if operation == LDA:
            a = result = value
        elif operation == STA:
            if address < 0x2000:
                ram[address & 0x7FF] = a
            else:
                cost += write_register(console, cartridge, address, a, cycle)
        elif operation == BNE:
            if result & 0xFF:
                pc = operand
                cost += step.extra_cycles
        elif operation == BEQ:
            if not result & 0xFF:
                pc = operand
                cost += step.extra_cycles
        elif operation == LDX:
            x = result = value
        elif operation == LDY:
            y = result = value
        elif operation == STX:
            if address < 0x2000:
                ram[address & 0x7FF] = x
            else:
                cost += write_register(console, cartridge, address, x, cycle)
        elif operation == STY:
            if address < 0x2000:
                ram[address & 0x7FF] = y
            else:
                cost += write_register(console, cartridge, address, y, cycle)

        elif operation == CMP:
            carry = int(a >= value)
            result = (a - value) & 0xFF
        elif operation == CPX:
            carry = int(x >= value)
            result = (x - value) & 0xFF
        elif operation == CPY:
            carry = int(y >= value)
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

        elif operation == BCC:
            if not carry:
                pc = operand
                cost += step.extra_cycles
        elif operation == BCS:
            if carry:
                pc = operand
                cost += step.extra_cycles
        elif operation == BPL:
            if not result & 0x180:
                pc = operand
                cost += step.extra_cycles
        elif operation == BMI:
            if result & 0x180:
                pc = operand
                cost += step.extra_cycles
        elif operation == BVC:
            if not console.overflow:
                pc = operand
                cost += step.extra_cycles
        elif operation == BVS:
            if console.overflow:
                pc = operand
                cost += step.extra_cycles
        elif operation == JMP:
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
        elif operation == PHA:
            ram[STACK | console.sp] = a
            console.sp = (console.sp - 1) & 0xFF
        elif operation == PLA:
            console.sp = (console.sp + 1) & 0xFF
            a = result = ram[STACK | console.sp]
        elif operation == PHP:
            ram[STACK | console.sp] = _pack_status(console, result, carry)
            console.sp = (console.sp - 1) & 0xFF
        elif operation == PLP or operation == RTI:
            console.sp = (console.sp + 1) & 0xFF
            status = ram[STACK | console.sp]
            result = (status & NEGATIVE) << 8 | (status & ZERO) ^ ZERO
            carry = (status & CARRY) >> 7
            console.overflow = status & OVERFLOW
            others = status & OTHERS
            if operation == RTI:
                pc = ram[STACK | (console.sp + 1) & 0xFF] + 256 * ram[STACK | (console.sp + 2) & 0xFF]
                console.sp = (console.sp + 2) & 0xFF
        # Loops whose turns are done at once, as far as they begin before `stop`.
        elif operation == JMP_TO_ITSELF:
            pc = operand
            cost += (stop - 1 - cycle) // 3 * 3
        elif operation == POLL_SPRITE_ZERO:
            value = read_register(console, cartridge, 0x2002, cycle)
            if value & 0x40 == operand:
                turns = poll_sprite_zero(console, cartridge, cycle, stop, POLL_CYCLES)
                if turns > 0:
                    value &= 0x7F  # the first reading has cleared the vertical blank flag
                    cost += turns * POLL_CYCLES
            a = result = value
        elif operation == BRK:
            status = _pack_status(console, result, carry) | INTERRUPT_DISABLE | DECIMAL
            console.sp = _push_interrupt(ram, console.sp, pc + 1 & 0xFFFF, status)
            console.others |= INTERRUPT_DISABLE
            pc = program[IRQ_VECTOR & 0x7FFF] + 256 * program[(IRQ_VECTOR + 1) & 0x7FFF]
            cost += 7  # nes-py counts an interrupt's 7 cycles on top of the instruction's
        elif operation == UNKNOWN:
            console.strayed = 1
        elif operation != NOP:  # read, modify, write back
            if operation == INC:
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
            if address < 0x2000:
                ram[address & 0x7FF] = result
            else:
                cost += write_register(console, cartridge, address, result, cycle)
        cycle += cost

    console.pc, console.a, console.x, console.y, console.cycle = pc, a, x, y, cycle
    console.result, console.carry = result, carry


@compiled
def interrupt(console: Console, cartridge: Cartridge) -> None:
    """The vertical blank's interrupt (NMI): before the next instruction, which begins 7 cycles later."""
    # nes-py sets the interrupt-disable flag in the copy it pushes, too.
    status = _pack_status(console, console.result, console.carry) | INTERRUPT_DISABLE
    console.sp = _push_interrupt(console.ram, console.sp, console.pc, status)
    console.others |= INTERRUPT_DISABLE
    program = cartridge.program
    console.pc = program[NMI_VECTOR & 0x7FFF] + 256 * program[(NMI_VECTOR + 1) & 0x7FFF]
    console.cycle += NMI_CYCLES


@compiled
def _push_interrupt(ram, sp: int, pc: int, status: int) -> int:
    ram[STACK | sp] = pc >> 8
    ram[STACK | (sp - 1) & 0xFF] = pc & 0xFF
    ram[STACK | (sp - 2) & 0xFF] = status
    return (sp - 3) & 0xFF


@compiled
def _pack_status(console: Console, result: int, carry: int) -> int:
    return (NEGATIVE if result & 0x180 else 0) | console.overflow | console.others | (0 if result & 0xFF else ZERO) | carry << 7


@compiled
def _read_memory(console: Console, cartridge: Cartridge, address: int) -> int:
    if address < 0x2000:
        return console.ram[address & 0x7FF]
    return cartridge.program[address & 0x7FFF]
