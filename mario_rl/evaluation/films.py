"""Film files: .mp4 with every frame, .gif with every second. Pictures are places in a palette, as on the console.

A film takes its file's place when it is complete; until then it is written beside it.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from mario_rl.errors import UserError

Picture = npt.NDArray[np.uint8]  # [height, width] places in a palette
Palette = npt.NDArray[np.uint8]  # [colours, 3] red, green, blue

FRAMES_PER_SECOND = 60
# A GIF's delays count in steps of 10 ms, and browsers slow down what is below 20 ms. Every second frame for 30 ms comes
# nearest to the true speed: 1.1 times as fast.
GIF_FRAME_STEP = 2
GIF_DELAY_MILLISECONDS = 30
# Unchanged pixels are left out where at least this many are in a row. In 1-1 at double size a picture takes 6.3 kB like
# this, 6.9 with none left out, and 7.3 with every single one.
SHORTEST_RUN = 12
SUFFIXES = (".mp4", ".gif")


class FilmError(UserError):
    """A film cannot be made; the message is for the user."""


class Film(Protocol):
    """A file that pictures are added to."""

    def add(self, picture: Picture) -> None:
        """The game's next frame."""

    def close(self) -> None:
        """Write what is left."""


def check_film(out: Path) -> None:
    """FilmError where this cannot become a film."""
    if out.suffix.lower() not in SUFFIXES:
        raise FilmError(f"A film is an {' or a '.join(SUFFIXES)} file, and {out} is neither: give it such a name.")
    temporary = out.with_name(f".{out.name}.saving")
    try:
        if not out.parent.is_dir():  # which itself fails where the name is too long, or a folder above is closed to us
            raise FilmError(f"There is no folder {out.parent} for {out.name}: create it, or give another path.")
        temporary.touch()
        if out.is_dir():
            temporary.unlink()
            raise FilmError(f"{out} is a folder: give another name.")
    except OSError as error:
        raise FilmError(f"{out} cannot be written ({error.strerror}): give another path.") from None
    temporary.unlink()


@contextmanager
def open_film(out: Path, palette: Palette, scale: int) -> Iterator[Film]:
    """A film to add pictures to. Unless all goes well, `out` stays as it was."""
    check_film(out)
    temporary = out.with_name(f".{out.name}.saving")
    try:
        kind = Mp4Film if out.suffix.lower() == ".mp4" else GifFilm
        with closing(kind(temporary, palette, scale)) as film:
            yield film
        temporary.replace(out)
    except OSError as error:  # PyAV's errors are OSErrors too
        raise FilmError(
            f"{out} could not be written ({error.strerror or error}): make room, or give another path."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


class Mp4Film:
    """H.264 as every browser plays it."""

    def __init__(self, path: Path, palette: Palette, scale: int) -> None:
        try:
            import av
        except ImportError:
            raise FilmError("An .mp4 film needs the package av: run pip install -r requirements.txt.") from None
        self._frame_class = av.VideoFrame
        self._palette, self._scale = palette, scale
        self._num_frames = 0
        # With the table of contents in front, a browser begins to play before all has arrived.
        self._file = av.open(str(path), "w", format="mp4", options={"movflags": "faststart"})
        # 20 looks like the original. The animation tuning is for flat areas with sharp edges.
        options = {"crf": "20", "preset": "veryfast", "tune": "animation"}
        self._stream = self._file.add_stream("libx264", FRAMES_PER_SECOND, options=options)
        self._stream.pix_fmt = "yuv420p"
        # Browsers differ in what they take an unnamed colour space for.
        context = self._stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = 1  # BT.709
        context.color_range = 1  # 16 to 235

    def add(self, picture: Picture) -> None:
        """Encode one frame."""
        if not self._num_frames:
            self._stream.height, self._stream.width = (size * self._scale for size in picture.shape)
        coloured = self._palette.take(_enlarge(picture, self._scale), axis=0)  # a third of the time that [] takes
        frame = self._frame_class.from_ndarray(coloured, "rgb24")
        frame = frame.reformat(format="yuv420p", dst_colorspace="ITU709")
        frame.pts, frame.time_base = self._num_frames, Fraction(1, FRAMES_PER_SECOND)
        self._num_frames += 1
        self._file.mux(self._stream.encode(frame))

    def close(self) -> None:
        """Write the last frames and the table of contents."""
        if self._num_frames:
            self._file.mux(self._stream.encode(None))
        self._file.close()


class GifFilm:
    """All pictures share one palette, and of each only the part that changed is kept."""

    def __init__(self, path: Path, palette: Palette, scale: int) -> None:
        try:
            from PIL import GifImagePlugin, Image
        except ImportError:
            raise FilmError("A .gif film needs the package pillow: run pip install -r requirements.txt.") from None
        self._images, self._encoder = Image, GifImagePlugin
        self._palette, self._scale = palette, scale
        self._num_frames = 0
        self._shown: Picture | None = None
        self._waiting: tuple[
            Picture, tuple[int, int]
        ]  # the part of the latest picture that is to be written, and where
        self._delay_milliseconds = 0
        self._file = open(path, "wb")  # noqa: SIM115 (closed by close)

    def add(self, picture: Picture) -> None:
        """Take every second frame. A picture is written when the next one differs, as only then its delay is known."""
        self._num_frames += 1
        if self._num_frames % GIF_FRAME_STEP != 1:
            return
        if self._shown is None:
            self._write_header(picture)
            self._waiting = picture.copy(), (0, 0)
        elif not np.array_equal(picture, self._shown):
            self._write_waiting()
            self._waiting = self._changes(picture, self._shown)
        self._delay_milliseconds += GIF_DELAY_MILLISECONDS
        self._shown = picture.copy()

    def close(self) -> None:
        """Write the last picture."""
        with self._file:
            if self._shown is not None:
                self._write_waiting()
                self._file.write(b";")

    @property
    def _unchanged(self) -> int:
        """A place after the palette that stands for whatever was shown before."""
        return len(self._palette)

    def _changes(self, picture: Picture, shown: Picture) -> tuple[Picture, tuple[int, int]]:
        """The rectangle that changed, with its long unchanged runs left out."""
        unchanged = picture == shown
        runs = sliding_window_view(unchanged, SHORTEST_RUN, axis=1).all(axis=2)  # where one begins
        left_out = np.zeros_like(unchanged)
        for shift in range(SHORTEST_RUN):
            left_out[:, shift : shift + runs.shape[1]] |= runs
        rows, columns = np.flatnonzero(~unchanged.all(axis=1)), np.flatnonzero(~unchanged.all(axis=0))
        area = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
        offset = int(columns[0]) * self._scale, int(rows[0]) * self._scale
        return np.where(left_out, np.uint8(self._unchanged), picture)[area], offset

    def _write_header(self, picture: Picture) -> None:
        height, width = picture.shape
        image = self._images.new("P", (width * self._scale, height * self._scale))
        image.putpalette([*self._palette.ravel().tolist(), 0, 0, 0])
        self._file.writelines(self._encoder.getheader(image, info={"loop": 0})[0])

    def _write_waiting(self) -> None:
        part, offset = self._waiting
        enlarged = _enlarge(part, self._scale)
        height, width = enlarged.shape
        image = self._images.frombytes("P", (width, height), enlarged.tobytes())
        blocks = self._encoder.getdata(
            image, offset, duration=self._delay_milliseconds, transparency=self._unchanged, disposal=1
        )
        self._file.writelines(blocks)
        self._delay_milliseconds = 0


def _enlarge(picture: Picture, scale: int) -> Picture:
    return picture.repeat(scale, axis=0).repeat(scale, axis=1)
