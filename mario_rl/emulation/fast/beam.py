"""The picture unit's beam: where it is, and what it does by itself on its way. Compiled.

The beam passes one dot at a time, 341 dots a line, 262 lines a picture, three dots for each processor cycle:

    line -1         pre-render: flags are cleared, the scroll position is loaded
    lines 0-239     visible: dots 0-255 are pixels
    line 240        nothing
    lines 241-260   vertical blank: the beam returns, and the processor is interrupted at the first dot

Most dots are never looked at, so the beam is moved only when one is: before the processor reads or writes one of
the picture unit's registers, and at the end of a frame (`catch_up`). Moving it over a line that is not drawn takes a
few additions.

nes-py's ways, which we follow: a pixel's tile is fetched when the beam is on it, not two tiles ahead; and where the
hardware leaves out the first dot of every other picture's line 0, nes-py leaves out the last dot of the line before.
"""

from mario_rl.emulation.emulator import SCREEN_HEIGHT, SCREEN_WIDTH
from mario_rl.emulation.fast.canvas import Canvas
from mario_rl.emulation.fast.cartridge import Cartridge
from mario_rl.emulation.fast.console import Console
from mario_rl.emulation.fast.nametables import tile_to_the_right
from mario_rl.emulation.fast.picture import draw_pixels, prepare_drawing
from mario_rl.emulation.fast.sprites import sprite_zero_x
from mario_rl.machine.compiling import compiled

DOTS_PER_LINE = 341
DOTS_PER_PICTURE = 262 * DOTS_PER_LINE
# Dots since the start of a picture.
FIRST_VISIBLE = DOTS_PER_LINE
AFTER_VISIBLE = FIRST_VISIBLE + SCREEN_HEIGHT * DOTS_PER_LINE
VBLANK = 242 * DOTS_PER_LINE
LENGTH_DECIDED = 340  # from this dot on it is known whether the picture is one dot shorter

# Parts of `video_address` and `scroll_address` (nametables.py).
HORIZONTAL, VERTICAL = 0x041F, 0x7BE0
FINE_Y, COARSE_Y, VERTICAL_NAMETABLE = 0x7000, 0x03E0, 0x0800


@compiled
def catch_up(console: Console, cartridge: Cartridge, canvas: Canvas, until: int) -> None:
    """Move the beam to dot `until` (since power-on), drawing if the frame is to be drawn."""
    while console.dot < until:
        _move(console, cartridge, canvas, until, False)


@compiled
def run_to_sprite_zero_change(console: Console, cartridge: Cartridge, canvas: Canvas, until: int) -> None:
    """Move the beam until just after the dot that changes the sprite 0 flag, or to `until`."""
    before = console.sprite_zero_hit
    while console.dot < until and console.sprite_zero_hit == before:
        _move(console, cartridge, canvas, until, True)


@compiled
def beam_line(console: Console) -> int:
    """The visible line whose sprites are chosen already: the one in hand, or the next picture's first."""
    position = console.dot - console.picture_start
    if FIRST_VISIBLE <= position < AFTER_VISIBLE:
        return (position - FIRST_VISIBLE) // DOTS_PER_LINE
    return 0


@compiled
def _move(console: Console, cartridge: Cartridge, canvas: Canvas, until: int, stop_at_hit: bool) -> None:
    """Move the beam through one part of the picture."""
    position = console.dot - console.picture_start
    limit = until - console.picture_start
    if position > VBLANK:
        if limit >= DOTS_PER_PICTURE:
            console.picture_start += DOTS_PER_PICTURE
            console.odd_picture ^= 1
            console.dot = console.picture_start
        else:
            console.dot = until
    elif position == VBLANK:
        console.vblank = 1
        console.dot += 1
    elif position >= AFTER_VISIBLE:
        console.dot = console.picture_start + min(limit, VBLANK)
    elif position >= FIRST_VISIBLE:
        _move_through_lines(console, cartridge, canvas, position, min(limit, AFTER_VISIBLE), stop_at_hit)
    elif position <= 0:  # -1 at power-on only
        if limit > 0:
            console.vblank = console.sprite_zero_hit = 0
        console.dot = console.picture_start + min(limit, 1)
    else:
        _move_through_pre_render(console, position, min(limit, FIRST_VISIBLE))


@compiled
def _move_through_pre_render(console: Console, first: int, last: int) -> None:
    console.dot = console.picture_start + last
    if console.rendering:
        if first <= 257 < last:
            _copy_scroll(console, HORIZONTAL)
        if first < 304 and last > 280:
            _copy_scroll(console, VERTICAL)
        if console.odd_picture and first < LENGTH_DECIDED <= last:
            console.dot = console.picture_start + LENGTH_DECIDED
            console.picture_start -= 1  # the line's last dot is left out


@compiled
def _move_through_lines(
    console: Console, cartridge: Cartridge, canvas: Canvas, position: int, limit: int, stop_at_hit: bool
) -> None:
    drawing = canvas.drawing
    if drawing and not canvas.prepared:
        prepare_drawing(console, cartridge, canvas)
    line = (position - FIRST_VISIBLE) // DOTS_PER_LINE
    line_start = FIRST_VISIBLE + line * DOTS_PER_LINE
    while position < limit:
        first = position - line_start
        last = min(limit - line_start, DOTS_PER_LINE)
        if first < SCREEN_WIDTH:
            last_pixel = min(last, SCREEN_WIDTH)
            if console.rendering and not console.sprite_zero_hit:
                hit = sprite_zero_x(console, cartridge, line, first, last_pixel)
                if hit >= 0:
                    console.sprite_zero_hit = 1
                    if stop_at_hit:
                        last = last_pixel = hit + 1
                        limit = line_start + last
            if drawing:
                draw_pixels(console, cartridge, canvas, line, first, last_pixel)
            if console.rendering:
                _move_right(console, first, last_pixel)
        if console.rendering:
            if first <= 256 < last:
                _move_down(console)
            if first <= 257 < last:
                _copy_scroll(console, HORIZONTAL)
        position = line_start + last
        if last == DOTS_PER_LINE:
            if console.held_line == line:
                console.held_line = -1
                # Lines below have their sprites already; in the next picture this line will have others.
                canvas.prepared = 0
            line += 1
            line_start += DOTS_PER_LINE
    console.dot = console.picture_start + position


@compiled
def _move_right(console: Console, first: int, last: int) -> None:
    """Move `video_address` right by the tiles whose last pixel was passed."""
    num_tiles = ((console.fine_x + last) >> 3) - ((console.fine_x + first) >> 3)
    console.video_address = tile_to_the_right(console.video_address, num_tiles)


@compiled
def _move_down(console: Console) -> None:
    """Move `video_address` down by one pixel. Rows 30 and 31 of a nametable hold attributes, not tiles."""
    address = console.video_address
    if address & FINE_Y != FINE_Y:
        address += 0x1000
    else:
        address &= ~FINE_Y
        row = (address & COARSE_Y) >> 5
        if row == 29:
            row = 0
            address ^= VERTICAL_NAMETABLE
        elif row == 31:
            row = 0
        else:
            row += 1
        address = address & ~COARSE_Y | row << 5
    console.video_address = address


@compiled
def _copy_scroll(console: Console, part: int) -> None:
    console.video_address = console.video_address & ~part | console.scroll_address & part
