"""One frame: processor and beam side by side for 29,781 cycles, nes-py's step. Compiled.

A picture takes 29,780.5 cycles on average, so the end of a frame moves down by 1.5 dots a frame, and what is on the
screen then is partly of one picture and partly of the next. That is nes-py's way (the hardware has only pictures).
"""

from mario_rl.emulation.fast.beam import DOTS_PER_PICTURE, LENGTH_DECIDED, VBLANK, catch_up
from mario_rl.emulation.fast.canvas import Canvas
from mario_rl.emulation.fast.cartridge import Cartridge
from mario_rl.emulation.fast.console import Console
from mario_rl.emulation.fast.processor import interrupt, run_processor
from mario_rl.machine.compiling import compiled

CYCLES_PER_FRAME = 29781


@compiled
def run_frame(console: Console, cartridge: Cartridge, canvas: Canvas, buttons: int, drawing: bool) -> None:
    """Run one frame with these buttons held, and draw it if asked for."""
    console.buttons = buttons
    canvas.drawing, canvas.prepared = drawing, 0
    console.frame_end += CYCLES_PER_FRAME
    last_dot = 3 * console.frame_end - 1
    event = _next_event(console)
    while event <= last_dot:
        # An instruction at cycle c sees the dots before 3 * (c + 1): those that begin earlier do not see the event.
        run_processor(console, cartridge, canvas, event // 3)
        catch_up(console, cartridge, canvas, event + 1)
        if event == console.picture_start + VBLANK and console.interrupts:
            interrupt(console, cartridge)
        event = _next_event(console)
    run_processor(console, cartridge, canvas, console.frame_end)
    catch_up(console, cartridge, canvas, last_dot + 1)


@compiled
def _next_event(console: Console) -> int:
    """The next dot at which the beam does what the processor cannot foresee."""
    position = console.dot - console.picture_start
    if position < LENGTH_DECIDED:
        return console.picture_start + LENGTH_DECIDED - 1
    if position <= VBLANK:
        return console.picture_start + VBLANK
    return console.picture_start + DOTS_PER_PICTURE + LENGTH_DECIDED - 1
