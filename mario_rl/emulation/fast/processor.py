"""The 6502: runs the decoded program until a given cycle. Compiled.

An instruction takes effect at its first cycle; the others pass before the next begins (nes-py's way, and fine for this
game, which never depends on what happens inside one). Registers live in local variables while the loop runs.

The status register has four flags that matter. N and Z are kept as the results they come from (`negative`, `zeroed`)
and worked out when somebody asks. The rest is in `others`. When the status is pushed, nes-py's byte has its bits in the
opposite order of the hardware's, NV1BDIZC from bit 0 on; the stack is RAM, so we do the same.
"""

from mario_rl.emulation.fast.cartridge import Cartridge
from mario_rl.emulation.fast.compiling import compiled
from mario_rl.emulation.fast.console import Console
from mario_rl.emulation.fast.instructions import (
    ABSOLUTE_X, ABSOLUTE_Y, ADC, AND, ASL, ASL_A, BCC, BCS, BEQ, BIT, BMI, BNE, BPL, BRK, BVC, BVS, CLC, CLD, CLI, CLV,
    CMP, CPX, CPY, DEC, DEX, DEY, DIRECT, EOR, FIRST_READER, IMMEDIATE, IMPLIED, INC, INDIRECT_X, INDIRECT_Y, INX, INY,
    JMP, JMP_INDIRECT, JMP_TO_ITSELF, JSR, LDA, LDX, LDY, LSR, LSR_A, NOP, ORA, PHA, PHP, PLA, PLP, POLL_SPRITE_ZERO,
    ROL, ROL_A, ROR, ROR_A, RTI, RTS, SBC, SEC, SED, SEI, STA, STX, STY, TAX, TAY, TSX, TXA, TXS, TYA, ZERO_PAGE_X,
    ZERO_PAGE_Y,
)  # fmt: skip
from mario_rl.emulation.fast.registers import poll_sprite_zero, read_register, write_register

NEGATIVE, OVERFLOW, DECIMAL, INTERRUPT_DISABLE, ZERO, CARRY = 0x01, 0x02, 0x10, 0x20, 0x40, 0x80
OTHERS = 0xFF & ~(NEGATIVE | OVERFLOW | ZERO | CARRY)

STACK = 0x0100
NMI_VECTOR, IRQ_VECTOR = 0xFFFA, 0xFFFE
NMI_CYCLES = 7


@compiled
def run_processor(console: Console, cartridge: Cartridge, stop: int) -> None:
    """Execute instructions as long as they begin before cycle `stop`."""
    ram, steps, program = console.ram, cartridge.steps, cartridge.program
    pc, a, x, y, sp, cycle = console.pc, console.a, console.x, console.y, console.sp, console.cycle
    status = console.status
    negative = (status & NEGATIVE) << 7
    zeroed = (status & ZERO) ^ ZERO
    carry = (status & CARRY) >> 7
    overflow = status & OVERFLOW
    others = status & OTHERS

    while cycle < stop:
        if pc < 0x8000:  # the game's program is all in ROM
            console.strayed = 1
            cycle = stop
            break
        step = steps[pc & 0x7FFF]
        operation = step.operation
        mode = step.mode
        operand = step.operand
        pc = (pc + step.length) & 0xFFFF
        begun = cycle
        cycle += step.cycles

        # Where is the operand?
        address = 0
        value = 0
        if mode == IMMEDIATE:
            value = operand
        elif mode != IMPLIED:
            if mode == DIRECT:
                address = operand
            elif mode == ZERO_PAGE_X:
                address = (operand + x) & 0xFF
            elif mode == ABSOLUTE_X:
                address = (operand + x) & 0xFFFF
                if (address ^ operand) & 0xFF00:
                    cycle += step.extra_cycles
            elif mode == ABSOLUTE_Y:
                address = (operand + y) & 0xFFFF
                if (address ^ operand) & 0xFF00:
                    cycle += step.extra_cycles
            elif mode == INDIRECT_Y:
                base = ram[operand & 0xFF] + 256 * ram[(operand + 1) & 0xFF]
                address = (base + y) & 0xFFFF
                if (address ^ base) & 0xFF00:
                    cycle += step.extra_cycles
            elif mode == ZERO_PAGE_Y:
                address = (operand + y) & 0xFF
            else:  # INDIRECT_X
                address = ram[(operand + x) & 0xFF] + 256 * ram[(operand + x + 1) & 0xFF]
            if operation >= FIRST_READER:
                if address < 0x2000:
                    value = ram[address & 0x7FF]
                elif address >= 0x8000:
                    value = program[address & 0x7FFF]
                else:
                    value = read_register(console, cartridge, address, begun)

        # What is done with it?
        if operation == LDA:
            a = negative = zeroed = value
        elif operation == STA:
            if address < 0x2000:
                ram[address & 0x7FF] = a
            else:
                cycle += write_register(console, cartridge, address, a, begun)
        elif operation == BNE:
            if zeroed != 0:
                pc = operand
                cycle += step.extra_cycles
        elif operation == BEQ:
            if zeroed == 0:
                pc = operand
                cycle += step.extra_cycles
        elif operation == LDX:
            x = negative = zeroed = value
        elif operation == LDY:
            y = negative = zeroed = value
        elif operation == STX:
            if address < 0x2000:
                ram[address & 0x7FF] = x
            else:
                cycle += write_register(console, cartridge, address, x, begun)
        elif operation == STY:
            if address < 0x2000:
                ram[address & 0x7FF] = y
            else:
                cycle += write_register(console, cartridge, address, y, begun)

        elif operation == CMP:
            carry = int(a >= value)
            negative = zeroed = (a - value) & 0xFF
        elif operation == CPX:
            carry = int(x >= value)
            negative = zeroed = (x - value) & 0xFF
        elif operation == CPY:
            carry = int(y >= value)
            negative = zeroed = (y - value) & 0xFF
        elif operation == AND:
            a = negative = zeroed = a & value
        elif operation == ORA:
            a = negative = zeroed = a | value
        elif operation == EOR:
            a = negative = zeroed = a ^ value
        elif operation == ADC:
            total = a + value + carry
            overflow = OVERFLOW if (a ^ total) & (value ^ total) & 0x80 else 0
            carry = total >> 8
            a = negative = zeroed = total & 0xFF
        elif operation == SBC:  # an addition of the complement; the NES has no decimal mode
            complement = value ^ 0xFF
            total = a + complement + carry
            overflow = OVERFLOW if (a ^ total) & (complement ^ total) & 0x80 else 0
            carry = total >> 8
            a = negative = zeroed = total & 0xFF
        elif operation == BIT:
            zeroed = a & value
            negative = value
            overflow = OVERFLOW if value & 0x40 else 0

        elif operation == INC or operation == DEC or (ASL <= operation <= ROR):
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
            negative = zeroed = result
            if address < 0x2000:
                ram[address & 0x7FF] = result
            else:
                cycle += write_register(console, cartridge, address, result, begun)
        elif operation == ASL_A:
            carry = a >> 7
            a = negative = zeroed = (a << 1) & 0xFF
        elif operation == LSR_A:
            carry = a & 1
            a = negative = zeroed = a >> 1
        elif operation == ROL_A:
            rotated = (a << 1) & 0xFF | carry
            carry = a >> 7
            a = negative = zeroed = rotated
        elif operation == ROR_A:
            rotated = a >> 1 | carry << 7
            carry = a & 1
            a = negative = zeroed = rotated

        elif operation == BCC:
            if not carry:
                pc = operand
                cycle += step.extra_cycles
        elif operation == BCS:
            if carry:
                pc = operand
                cycle += step.extra_cycles
        elif operation == BPL:
            if not negative & 0x80:
                pc = operand
                cycle += step.extra_cycles
        elif operation == BMI:
            if negative & 0x80:
                pc = operand
                cycle += step.extra_cycles
        elif operation == BVC:
            if not overflow:
                pc = operand
                cycle += step.extra_cycles
        elif operation == BVS:
            if overflow:
                pc = operand
                cycle += step.extra_cycles
        elif operation == JMP:
            pc = operand
        elif operation == JSR:  # pushes the address of its own last byte; RTS adds one
            ram[STACK | sp] = (pc - 1) >> 8
            ram[STACK | (sp - 1) & 0xFF] = (pc - 1) & 0xFF
            sp = (sp - 2) & 0xFF
            pc = operand
        elif operation == RTS:
            pc = (ram[STACK | (sp + 1) & 0xFF] + 256 * ram[STACK | (sp + 2) & 0xFF]) + 1 & 0xFFFF
            sp = (sp + 2) & 0xFF
        elif operation == JMP_INDIRECT:  # the 6502 does not carry into the pointer's page
            high = operand & 0xFF00 | (operand + 1) & 0xFF
            pc = _read_memory(console, cartridge, operand) + 256 * _read_memory(console, cartridge, high)

        elif operation == TAX:
            x = negative = zeroed = a
        elif operation == TAY:
            y = negative = zeroed = a
        elif operation == TXA:
            a = negative = zeroed = x
        elif operation == TYA:
            a = negative = zeroed = y
        elif operation == TSX:
            x = negative = zeroed = sp
        elif operation == TXS:
            sp = x
        elif operation == INX:
            x = negative = zeroed = (x + 1) & 0xFF
        elif operation == INY:
            y = negative = zeroed = (y + 1) & 0xFF
        elif operation == DEX:
            x = negative = zeroed = (x - 1) & 0xFF
        elif operation == DEY:
            y = negative = zeroed = (y - 1) & 0xFF
        elif operation == CLC:
            carry = 0
        elif operation == SEC:
            carry = 1
        elif operation == CLV:
            overflow = 0
        elif operation == CLI:
            others &= ~INTERRUPT_DISABLE
        elif operation == SEI:
            others |= INTERRUPT_DISABLE
        elif operation == CLD:
            others &= ~DECIMAL
        elif operation == SED:
            others |= DECIMAL
        elif operation == PHA:
            ram[STACK | sp] = a
            sp = (sp - 1) & 0xFF
        elif operation == PLA:
            sp = (sp + 1) & 0xFF
            a = negative = zeroed = ram[STACK | sp]
        elif operation == PHP:
            ram[STACK | sp] = _pack_status(negative, zeroed, carry, overflow, others)
            sp = (sp - 1) & 0xFF
        elif operation == PLP or operation == RTI:
            sp = (sp + 1) & 0xFF
            status = ram[STACK | sp]
            negative = (status & NEGATIVE) << 7
            zeroed = (status & ZERO) ^ ZERO
            carry = (status & CARRY) >> 7
            overflow = status & OVERFLOW
            others = status & OTHERS
            if operation == RTI:
                pc = ram[STACK | (sp + 1) & 0xFF] + 256 * ram[STACK | (sp + 2) & 0xFF]
                sp = (sp + 2) & 0xFF
        elif operation == JMP_TO_ITSELF:  # only an interrupt ends it: let all turns pass that begin before `stop`
            pc = operand
            cycle += (stop - 1 - begun) // 3 * 3
        elif operation == POLL_SPRITE_ZERO:
            value = read_register(console, cartridge, 0x2002, begun)
            if value & 0x40 == operand:
                turns = poll_sprite_zero(console, cartridge, begun, stop, step.extra_cycles)
                if turns > 0:
                    value &= 0x7F  # the first reading has cleared the vertical blank flag
                    cycle += turns * step.extra_cycles
            a = negative = zeroed = value
        elif operation == BRK:
            status = _pack_status(negative, zeroed, carry, overflow, others) | INTERRUPT_DISABLE | DECIMAL
            sp = _push_interrupt(ram, sp, pc + 1 & 0xFFFF, status)
            others |= INTERRUPT_DISABLE
            pc = program[IRQ_VECTOR & 0x7FFF] + 256 * program[(IRQ_VECTOR + 1) & 0x7FFF]
            cycle += 7  # nes-py counts an interrupt's 7 cycles on top of the instruction's
        elif operation != NOP:
            console.strayed = 1

    console.pc, console.a, console.x, console.y, console.sp, console.cycle = pc, a, x, y, sp, cycle
    console.status = _pack_status(negative, zeroed, carry, overflow, others)


@compiled
def interrupt(console: Console, cartridge: Cartridge) -> None:
    """The vertical blank's interrupt (NMI): before the next instruction, which begins 7 cycles later."""
    # nes-py sets the interrupt-disable flag in the copy it pushes, too.
    console.sp = _push_interrupt(console.ram, console.sp, console.pc, console.status | INTERRUPT_DISABLE)
    console.status |= INTERRUPT_DISABLE
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
def _pack_status(negative: int, zeroed: int, carry: int, overflow: int, others: int) -> int:
    return (negative >> 7) & 1 | overflow | others | (0 if zeroed else ZERO) | carry << 7


@compiled
def _read_memory(console: Console, cartridge: Cartridge, address: int) -> int:
    if address < 0x2000:
        return console.ram[address & 0x7FF]
    return cartridge.program[address & 0x7FFF]
