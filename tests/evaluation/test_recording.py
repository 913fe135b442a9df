import errno
import sys
from dataclasses import replace

import av
import numpy as np
import pytest
import torch
from PIL import Image

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.emulation import rules
from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ACTION_SETS, LEFT, NOOP, RIGHT, UP, A, B
from mario_rl.errors import UserError
from mario_rl.evaluation.episodes import NOT_STICKY, play_episodes
from mario_rl.evaluation.films import FilmError, open_film
from mario_rl.evaluation.recording import (
    FRAMES_AFTER_FAILURE,
    FRAMES_AFTER_FLAG,
    PALETTE,
    ColourGame,
    Recorded,
    play_greedily,
    record,
    with_joypad,
)
from tests import rules as test_rules
from tests.emulation.games import WINNING_BUTTONS, Games

LEVEL = Level(1, 1)
SHAPE = NetworkShape((4, 8, 8), 16, 7)
PLAY = replace(test_rules.PLAY, no_progress_decisions=150)
SMALL = np.arange(6, dtype=np.uint8)[:, np.newaxis] + np.arange(16, dtype=np.uint8)  # a picture


@pytest.fixture
def network():
    torch.manual_seed(2)
    return QNetwork(SHAPE).eval()


class Scripted(QNetwork):
    """Plays given buttons, whatever it sees."""

    def __init__(self, buttons):
        super().__init__(SHAPE)
        self.eval()
        self.actions = iter([ACTION_SETS["simple"].index(held) for held in buttons])

    def values(self, features):
        return torch.nn.functional.one_hot(torch.tensor([next(self.actions)]), 7) * 6.3


def refusal(call, *arguments, **options):
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def read_mp4(path):
    with av.open(path) as film:
        stream = film.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt, stream.average_rate) == ("h264", "yuv420p", 60)
        return [frame.to_ndarray(format="rgb24") for frame in film.decode(stream)]


def read_gif(path, first=0):
    """What it shows from a picture on, once for every 30 ms."""
    with Image.open(path) as film:
        shown = []
        for number in range(first, film.n_frames):
            film.seek(number)
            num_times, rest = divmod(film.info["duration"], 30)
            assert not rest
            shown += [np.asarray(film.convert("RGB"))] * num_times
        return shown


def in_colour(picture, scale):
    return PALETTE[picture].repeat(scale, axis=0).repeat(scale, axis=1)


def patient(decisions):
    """The rules with this many decisions without progress."""
    return replace(PLAY, no_progress_decisions=decisions)


def some_steps():
    """A policy that stops after six decisions."""
    return Scripted([RIGHT, RIGHT | A, RIGHT | B, RIGHT | A | B, LEFT, A] + [NOOP] * 20)


def film_pictures():
    """The pictures of its episode."""
    game = ColourGame(LEVEL)
    shots = play_greedily(some_steps(), patient(3), LEVEL, 0)
    return [with_joypad(screen, s.buttons, s.value) for s in shots for screen in game.play(s.buttons, s.num_frames)]


@pytest.mark.parametrize(
    ("buttons", "idle_frames", "cleared"), [(WINNING_BUTTONS[::4], 7, True), ([RIGHT] * 200, 0, False)]
)
def test_the_film_game_stays_with_the_training_emulator_until_the_end(buttons, idle_frames, cleared):
    """Byte by byte after each decision, to the flag and to the first enemy."""
    game = ColourGame(LEVEL)
    for shot in play_greedily(Scripted(buttons), PLAY, LEVEL, idle_frames):
        for _ in game.play(shot.buttons, shot.num_frames):
            pass
        assert game.ram.tobytes() == shot.ram.tobytes()
    assert shot.cleared == cleared
    assert rules.is_dying(game.ram) != cleared


def test_the_film_game_goes_through_a_cut_scene_as_the_training_emulator_does():
    game, games = ColourGame(LEVEL), Games("fast")
    num_frames = []
    for number in range(12):
        if number == 5:
            game.ram[rules.PLAYER_STATE] = games.emulator.ram(0)[rules.PLAYER_STATE] = 3  # down a pipe
        games.play(RIGHT, num_frames=4)
        num_frames.append(len(list(game.play(RIGHT, 4))))
        assert game.ram.tobytes() == games.ram()
    assert num_frames[0] == 4
    assert max(num_frames) > 20


def test_an_episode_goes_as_in_evaluation(network, tmp_path):
    play = patient(12)
    [episode] = play_episodes(network, play, Level(1, 1), np.array([5], np.int32), NOT_STICKY, np.random.default_rng(0))
    recorded = record(network, play, LEVEL, tmp_path / "film.gif", idle_frames=5)
    assert recorded[:3] == (episode.cleared, episode.distance, episode.decisions)
    assert recorded.frames == 5 + 4 * episode.decisions + FRAMES_AFTER_FAILURE
    assert 12 <= episode.decisions < 100


def test_an_mp4_holds_every_frame_in_true_colours(tmp_path):
    out = tmp_path / "film.mp4"
    recorded = record(some_steps(), patient(3), LEVEL, out)
    frames = read_mp4(out)
    assert len(frames) == recorded.frames
    pictures = film_pictures()
    assert len(pictures) == recorded.frames - FRAMES_AFTER_FAILURE
    for frame, picture in zip(frames, pictures, strict=False):
        assert frame.shape == (480, 512, 3)
        # A picture of another frame, a shift by one pixel or other colours differ by more.
        assert np.abs(frame.astype(np.int16) - in_colour(picture, 2)).mean() < 3
    assert list(tmp_path.iterdir()) == [out]


def test_a_gif_holds_every_second_frame_exactly(tmp_path):
    out = tmp_path / "film.GIF"
    recorded = record(some_steps(), patient(3), LEVEL, out, scale=3)
    shown = read_gif(out)
    assert len(shown) == (recorded.frames + 1) // 2
    played = film_pictures()
    assert len(played) == recorded.frames - FRAMES_AFTER_FAILURE
    for number, picture in enumerate(played[::2]):
        assert np.array_equal(shown[number], in_colour(picture, 3)), number
    assert len(np.unique(played[0])) > 8
    assert list(tmp_path.iterdir()) == [out]


def test_a_cleared_level_is_filmed_until_the_flag_is_down(tmp_path):
    out = tmp_path / "film.gif"
    script = WINNING_BUTTONS[::4]
    recorded = record(Scripted(script), PLAY, LEVEL, out, scale=1)
    assert recorded == Recorded(True, 3161, recorded.decisions, recorded.frames)
    assert 0 <= 4 * recorded.decisions + FRAMES_AFTER_FLAG - recorded.frames < 4
    assert out.stat().st_size < 3_000_000
    shown = read_gif(out, first=600)
    assert flag_row(shown[-FRAMES_AFTER_FLAG // 2]) < 70
    assert flag_row(shown[-1]) > 150


def flag_row(picture):
    """Where the white flag hangs on its green pole."""
    pole = (picture == (0xB8, 0xF8, 0x18)).all(axis=2).sum(axis=0).argmax()
    [rows] = np.nonzero((picture[40:, pole - 16 : pole - 2] >= 0xF8).all(axis=2).any(axis=1))
    return 40 + rows.mean()


def test_held_buttons_are_lit_and_the_value_is_written():
    screen = np.zeros((240, 256), np.uint8)
    nothing = with_joypad(screen, NOOP, None)
    assert not screen.any()  # a copy
    changed = {held: with_joypad(screen, held, None) != nothing for held in (LEFT, RIGHT, UP, A, B)}
    assert all(pixels.sum() >= 12 for pixels in changed.values())
    assert np.array_equal(with_joypad(screen, RIGHT | A, None) != nothing, changed[RIGHT] | changed[A])
    columns = {held: np.flatnonzero(pixels.any(axis=0)).mean() for held, pixels in changed.items()}
    assert columns[LEFT] < columns[UP] < columns[RIGHT] < columns[B] < columns[A]
    texts = [with_joypad(screen, NOOP, value)[221:236, 4:92].tobytes() for value in (6.3, 6.4, -6.3, 12.3, -12.3)]
    assert len({nothing[221:236, 4:92].tobytes(), *texts}) == 6
    assert np.array_equal(with_joypad(screen, NOOP, 6.3), with_joypad(screen, NOOP, 6.31))
    assert with_joypad(screen, NOOP, -12345.6).shape == screen.shape  # cut off


def film_something_wrong(film):
    film.add(SMALL)
    raise IndexError


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_a_film_that_breaks_off_leaves_the_older_one(tmp_path, suffix):
    out = tmp_path / f"film{suffix}"
    out.write_bytes(b"older")
    with pytest.raises(IndexError), open_film(out, PALETTE, 2) as film:
        film_something_wrong(film)
    assert out.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [out]


def test_a_gif_keeps_changes_of_any_size_and_place(tmp_path):
    rng = np.random.default_rng(0)
    pictures = [rng.integers(64, size=(20, 40), dtype=np.uint8)]
    for _ in range(30):
        top, left = rng.integers((20, 40))
        picture = pictures[-1].copy()
        picture[top : top + rng.integers(4), left : left + rng.integers(40)] = rng.integers(64)
        pictures.append(picture)
    with open_film(tmp_path / "film.gif", PALETTE, 1) as film:
        for picture in pictures:
            film.add(picture)
            film.add(SMALL)  # every second one is left out
    assert np.array_equal(read_gif(tmp_path / "film.gif"), PALETTE[pictures])
    with Image.open(tmp_path / "film.gif") as written:
        assert written.n_frames < len(pictures)  # one that is the same again only stays for longer


@pytest.mark.parametrize("name", ["film.avi", "film", ".mp4", "film.mp4.txt"])
def test_another_kind_of_file_is_refused(network, tmp_path, name):
    message = refusal(record, network, PLAY, LEVEL, tmp_path / name)
    assert name in message
    assert ".mp4 or a .gif" in message
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_refused(network, tmp_path):
    folder = tmp_path / "films"
    assert str(folder) in refusal(record, network, PLAY, LEVEL, folder / "film.mp4")
    (folder / "film.gif").mkdir(parents=True)
    assert "is a folder" in refusal(record, network, PLAY, LEVEL, folder / "film.gif")
    for name in (f"{'x' * 300}.gif", f"{'x' * 300}/film.gif", f"{'x/' * 3_000}film.mp4"):
        assert "cannot be written" in refusal(record, network, PLAY, LEVEL, folder / name)


def test_a_folder_that_is_closed_to_us_is_refused(network, tmp_path, monkeypatch):
    def closed(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(type(tmp_path), "is_dir", closed)  # the machine's administrator may look everywhere
    message = refusal(record, network, PLAY, LEVEL, tmp_path / "film.mp4")
    assert "cannot be written (Permission denied)" in message


@pytest.mark.parametrize("scale", [0, 9])
def test_a_scale_out_of_range_is_refused(network, tmp_path, scale):
    message = refusal(record, network, PLAY, LEVEL, tmp_path / "film.gif", scale=scale)
    assert f"be {scale} times" in message
    assert "from 1 to 8" in message


@pytest.mark.parametrize(("suffix", "package", "name"), [(".mp4", "av", "av"), (".gif", "PIL", "pillow")])
def test_a_missing_package_is_named_with_the_remedy(network, tmp_path, monkeypatch, suffix, package, name):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(FilmError, match=f"package {name}: run pip install -r requirements.txt"):
        record(network, PLAY, LEVEL, tmp_path / f"film{suffix}")
    assert not list(tmp_path.iterdir())
