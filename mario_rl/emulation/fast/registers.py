"""What the processor finds at the addresses of the picture unit, the joypads and the sprite copier. Compiled.

Sound registers are ignored: there is no sound. Some features of the picture unit the game never uses: sprites of 8 x 16
pixels, hidden edges, background without sprites or sprites without background, single sprite bytes, sprite copies from
outside RAM. Should a program use them after all, `strayed` is set and the emulator refuses to go on.
"""

from mario_rl.emulation.fast.beam import beam_line, catch_up, run_to_sprite_zero_change
from mario_rl.emulation.fast.canvas import Canvas
from mario_rl.emulation.fast.cartridge import Cartridge
from mario_rl.emulation.fast.console import Console
from mario_rl.emulation.fast.nametables import nametable_index
from mario_rl.emulation.fast.sprites import hold_sprites
from mario_rl.machine.compiling import compiled

# The picture unit's eight registers repeat from 0x2000 to 0x3FFF.
CONTROL, MASK, STATUS, SPRITE_ADDRESS, SPRITE_BYTE, SCROLL, VIDEO_ADDRESS, VIDEO_BYTE = range(8)
SPRITE_COPY, JOYPAD_1, JOYPAD_2 = 0x4014, 0x4016, 0x4017

TALL_SPRITES = 0x20  # in CONTROL
SHOW_EDGES, SHOW_BOTH = 0x06, 0x18  # in MASK


@compiled
def read_register(console: Console, cartridge: Cartridge, canvas: Canvas, address: int, cycle: int) -> int:
    """What the processor reads from an address that is neither RAM nor ROM."""
    if address < 0x4000:
        catch_up(console, cartridge, canvas, 3 * (cycle + 1))
        register = address & 7
        if register == STATUS:
            status = console.vblank << 7 | console.sprite_zero_hit << 6
            console.vblank = 0
            console.second_write = 0
            return status
        if register == VIDEO_BYTE:
            return _read_video(console, cartridge)
        if register == SPRITE_BYTE:
            console.strayed = 1
        return 0
    if address == JOYPAD_1:
        if console.strobe:
            return 0x40 | console.buttons & 1
        bit = console.joypad_bits & 1  # after the eighth nes-py gives 0, the hardware 1
        console.joypad_bits >>= 1
        return 0x40 | bit
    if address == JOYPAD_2:
        return 0x40  # nothing is pressed there
    return 0


@compiled
def write_register(console: Console, cartridge: Cartridge, canvas: Canvas, address: int, value: int, cycle: int) -> int:
    """What the processor writes to an address that is not RAM; the cycles it has to wait."""
    if address < 0x4000:
        catch_up(console, cartridge, canvas, 3 * (cycle + 1))
        register = address & 7
        if register != SCROLL:  # it moves the picture, but changes nothing in it
            canvas.prepared = 0
        _write_picture_unit(console, register, value)
    elif address == SPRITE_COPY:
        catch_up(console, cartridge, canvas, 3 * (cycle + 1))
        canvas.prepared = 0
        _copy_sprites(console, value)
        return 513 + ((cycle + 1) & 1)
    elif address == JOYPAD_1:
        console.strobe = value & 1
        if not console.strobe:
            console.joypad_bits = console.buttons
    return 0


@compiled
def poll_sprite_zero(
    console: Console, cartridge: Cartridge, canvas: Canvas, cycle: int, stop: int, turn_cycles: int
) -> int:
    """How many turns of a polling loop, after the reading at `cycle`, will still read the same sprite 0 flag.

    Only the beam can change it while the processor polls, so the beam may run ahead of the processor to find out. Turns
    are left out only as far as they begin before `stop`.
    """
    turns = (stop - 1 - cycle) // turn_cycles
    before = console.sprite_zero_hit
    run_to_sprite_zero_change(console, cartridge, canvas, 3 * stop)
    if console.sprite_zero_hit != before:
        # A reading at cycle c sees the dots before 3 * (c + 1).
        turns = min(turns, (((console.dot - 1) // 3 - 1) - cycle) // turn_cycles)
    return turns


@compiled
def _write_picture_unit(console: Console, register: int, value: int) -> None:
    if register == CONTROL:
        console.interrupts = value >> 7
        console.background_page = (value & 0x10) << 8
        console.sprite_page = (value & 0x08) << 9
        console.address_step = 32 if value & 0x04 else 1
        console.scroll_address = console.scroll_address & ~0x0C00 | (value & 3) << 10
        if value & TALL_SPRITES:
            console.strayed = 1
    elif register == MASK:
        console.rendering = 1 if value & SHOW_BOTH else 0
        if console.rendering and value & (SHOW_BOTH | SHOW_EDGES) != SHOW_BOTH | SHOW_EDGES:
            console.strayed = 1
    elif register == SPRITE_ADDRESS:
        hold_sprites(console, beam_line(console))
        console.sprite_address = value
    elif register == SPRITE_BYTE:
        console.strayed = 1
    elif register == SCROLL:
        if console.second_write:
            console.scroll_address = console.scroll_address & ~0x73E0 | (value & 0x07) << 12 | (value & 0xF8) << 2
        else:
            console.scroll_address = console.scroll_address & ~0x001F | value >> 3
            console.fine_x = value & 7
        console.second_write ^= 1
    elif register == VIDEO_ADDRESS:
        if console.second_write:
            console.scroll_address = console.scroll_address & ~0x00FF | value
            console.video_address = console.scroll_address
        else:
            console.scroll_address = console.scroll_address & ~0xFF00 | (value & 0x3F) << 8
        console.second_write ^= 1
    elif register == VIDEO_BYTE:
        _write_video(console, value)


@compiled
def _write_video(console: Console, value: int) -> None:
    address = console.video_address
    # nes-py's borders; on the hardware the palette lies from 0x3F00 to 0x3FFF, and 0x3F14, 18 and 1C are mirrors, too.
    if 0x2000 <= address < 0x3EFF:
        console.video_ram[nametable_index(address)] = value
    elif 0x3EFF <= address < 0x3FFF:
        console.palette[0 if address == 0x3F10 else address & 0x1F] = value
    console.video_address = (address + console.address_step) & 0xFFFF


@compiled
def _read_video(console: Console, cartridge: Cartridge) -> int:
    address = console.video_address
    value = 0
    if address < 0x2000:
        value = cartridge.patterns[address]
    elif address < 0x3EFF:
        value = console.video_ram[nametable_index(address)]
    elif address < 0x3FFF:
        value = console.palette[address & 0x1F]
    console.video_address = (address + console.address_step) & 0xFFFF
    if console.video_address < 0x3F00:  # nes-py looks at the address after the step
        value, console.read_buffer = console.read_buffer, value
    return value


@compiled
def _copy_sprites(console: Console, page: int) -> None:
    if page >= 0x20:  # not from RAM
        console.strayed = 1
        return
    hold_sprites(console, beam_line(console))
    for index in range(0x100):
        console.sprites[(console.sprite_address + index) & 0xFF] = console.ram[(page << 8 | index) & 0x7FF]
