import numpy as np

from mario_rl.environment.actions import RIGHT, A, B
from mario_rl.environment.episodes import Episodes
from mario_rl.environment.observation import BLOCK, show_buttons
from tests.environment.test_episodes import LEFT, RULES, RUN, RUN_AND_JUMP_ACTION, _play


def _blocks(pictures):
    """The values of both blocks; each has only one."""
    blocks = [pictures[..., :BLOCK, place * BLOCK : (place + 1) * BLOCK] for place in range(2)]
    for block in blocks:
        assert (block == block[..., :1, :1]).all()
    return [(int(a), int(b)) for a, b in zip(*(block[..., 0, 0].ravel() for block in blocks), strict=True)]


def test_each_button_has_a_block_of_its_own_and_nothing_else_is_painted():
    pictures = np.full((4, 84, 84), 100, np.uint8)
    show_buttons(pictures, np.array([0, RIGHT | A, B, A | B], np.uint8))
    assert _blocks(pictures) == [(0, 0), (255, 0), (0, 255), (255, 255)]
    pictures[:, :BLOCK, : 2 * BLOCK] = 100
    assert (pictures == 100).all()


def test_a_picture_shows_the_buttons_of_the_decision_before_it_and_an_episode_begins_with_none():
    episodes = Episodes(*RULES, 1, np.random.default_rng(0))
    actions = [RUN, RUN_AND_JUMP_ACTION, LEFT, RUN_AND_JUMP_ACTION, RUN]
    rows = _play(episodes, np.array(actions)[:, None])
    episodes.close()
    assert _blocks(rows.frame[0]) == [(0, 0), (0, 255), (255, 255), (0, 0), (255, 255)]


def test_the_blocks_hide_nothing_that_ever_changes():
    episodes = Episodes(*RULES, 1, np.random.default_rng(0))
    pictures, corners = np.empty((1, 1, 84, 84), np.uint8), set()
    for action in [RUN, RUN_AND_JUMP_ACTION] * 10:
        _play(episodes, np.array([[action]]))
        episodes._player.emulator.draw(pictures, 0)
        corners.add(pictures[0, 0, :BLOCK, : 2 * BLOCK].tobytes())
    episodes.close()
    assert len(corners) == 1
