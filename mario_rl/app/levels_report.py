"""What the models in models/ can do: a page with a table of all levels, and a strip of pictures of each. No training.

Everything in the table comes from the models' cards, which `levels` wrote; the pictures are played anew.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from mario_rl.app.commands import play_rules
from mario_rl.emulation.rules import Level
from mario_rl.environment.task import PlayRules
from mario_rl.errors import UserError
from mario_rl.evaluation.recording import PALETTE, ColourGame, play_greedily
from mario_rl.storage.files import replace_durably
from mario_rl.storage.policies import read_policy
from mario_rl.telemetry.console import Console

LEVELS = [Level(world, stage) for world in range(1, 9) for stage in range(1, 5)]
PAGE, STRIP = "levels.md", "levels.png"
PICTURES = 6  # a level
PICTURE_WIDTH, PICTURE_HEIGHT, LABEL_WIDTH, GAP = 96, 84, 30, 2
COLUMNS = 2
HEADINGS = (
    *("level", "actions", "search", "decisions", "minutes"),
    *("starts 0-30", "31-60", "sticky 0.1", "0.25", "0.25 by frame", "seed"),
)
ALL_STARTS, STICKY = 0, 2  # places among the trials of a card
PASS_STARTS, PASS_STICKY = 0.9, 0.6


def write_report(project: Path, folder: Path) -> int:
    """Write page and strip. 0 when there is a model at all."""
    cards = cards_of(project)
    if not cards:
        raise UserError("models/ has no model of `levels` yet, as mario-1-1.safetensors: train one first.")
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: create it, or give another one to --report.")
    strips = {level: film_strip(project / "models" / f"mario-{level}.safetensors", level) for level in cards}
    try:
        _save_picture(folder / STRIP, _assemble(strips))
        replace_durably(folder / PAGE, "\n".join(page(cards)).encode())
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}): give another folder to --report.") from None
    Console().line(f"{folder / PAGE} and {STRIP}: {len(cards)} of {len(LEVELS)} levels.")
    return 0


def cards_of(project: Path) -> dict[Level, dict[str, Any]]:
    """The cards of all models that `levels` has trained and evaluated."""
    return {level: card for level in LEVELS if (card := _card(project, level)) is not None}


def _card(project: Path, level: Level) -> dict[str, Any] | None:
    """The card of a level's model, where `levels` has evaluated it."""
    model = project / "models" / f"mario-{level}.safetensors"
    try:
        card = json.loads(model.with_suffix(".json").read_text())
    except (OSError, ValueError):
        return None
    return card if model.exists() and isinstance(card, dict) and card.get("trials") else None


def page(cards: dict[Level, dict[str, Any]]) -> list[str]:
    """The lines of the page."""
    num_missing = len(LEVELS) - len(cards)
    passed = [level for level, card in cards.items() if _passes(card)]
    return [
        "# Levels",
        "",
        "Written by `python mario_rl_optimized.py levels --report docs` from the cards of the models in `models/`. One",
        "run a level; a card tells its command and commit. *Search* and *decisions* are what map and policy took,",
        "*minutes* both together. The rest is the share of episodes that reached the flag, with 95 % intervals: from",
        "the 31 starts that training knows, from 30 others, and with three kinds of sticky actions, 100 episodes each.",
        "",
        f"**{len(passed)} of {len(LEVELS)} levels** have a model that clears at least {PASS_STARTS:.0%} of the starts",
        f"and {PASS_STICKY:.0%} of the episodes with sticky actions of 0.1. {num_missing} have no model yet.",
        "",
        *([f"![Some moments of an episode of each level]({STRIP})", ""] if cards else []),
        f"| {' | '.join(HEADINGS)} |",
        "|---" * len(HEADINGS) + "|",
        *(_row(level, cards.get(level)) for level in LEVELS),
        "",
    ]


def _passes(card: dict[str, Any]) -> bool:
    rates = [trial["cleared"] / trial["episodes"] for trial in card["trials"]]
    return bool(rates[ALL_STARTS] >= PASS_STARTS and rates[STICKY] >= PASS_STICKY)


def _row(level: Level, card: dict[str, Any] | None) -> str:
    if card is None:
        return f"| {level} {'| – ' * (len(HEADINGS) - 1)}|"
    search = card["search"]
    minutes, cores = card["minutes"] + search["minutes"], card["machine"]["cores"]
    cells = [
        str(level) + (" from " + card["init"] if card.get("init") else ""),
        card["actions"],
        f"{search['decisions']:,}",
        f"{card['decisions']:,}",
        f"{minutes:.1f} on {cores} core{'s' if cores > 1 else ''}",
        *(_rate(trial) for trial in card["trials"]),
        str(card.get("seed", "–")),
    ]
    return f"| {' | '.join(cells)} |"


def _rate(trial: dict[str, Any]) -> str:
    low, high = trial["interval"]
    return f"{trial['cleared'] / trial['episodes']:.0%} ({low:.0%}-{high:.0%})"


def film_strip(model: Path, level: Level) -> npt.NDArray[np.uint8]:
    """Some pictures of a greedy episode, evenly spaced."""  # [height, width, 3]
    policy = read_policy(model)
    rules = play_rules(policy)
    screens = [PALETTE[screen] for screen in _screens(policy.network(), rules, level)]
    chosen = np.linspace(len(screens) // (2 * PICTURES), len(screens) - 1, PICTURES).astype(int)
    size = PICTURE_WIDTH, PICTURE_HEIGHT
    small = [Image.fromarray(screens[moment]).resize(size, Image.Resampling.LANCZOS) for moment in chosen]
    strip: npt.NDArray[np.uint8] = np.hstack([np.asarray(picture) for picture in small])
    return strip


def _screens(network: Any, rules: PlayRules, level: Level) -> list[npt.NDArray[np.uint8]]:
    """The screen after each decision."""
    game, screens = ColourGame(level), []
    for shot in play_greedily(network, rules, level, 0):
        for screen in game.play(shot.buttons, shot.num_frames):
            last = screen
        if shot.num_decisions:
            screens.append(last.copy())
    return screens


def _assemble(strips: dict[Level, npt.NDArray[np.uint8]]) -> Image.Image:
    """All strips, with the name of its level before each."""
    rows = -(-len(strips) // COLUMNS)
    width, height = LABEL_WIDTH + PICTURES * PICTURE_WIDTH + GAP, PICTURE_HEIGHT + GAP
    columns = min(COLUMNS, len(strips))
    whole = Image.new("RGB", (columns * width, rows * height), "black")
    draw = ImageDraw.Draw(whole)
    for number, (level, strip) in enumerate(strips.items()):
        column, row = divmod(number, rows)
        left, top = column * width, row * height
        draw.text((left + 6, top + PICTURE_HEIGHT // 2 - 6), str(level), fill="white")
        whole.paste(Image.fromarray(strip), (left + LABEL_WIDTH, top))
    return whole


def _save_picture(out: Path, picture: Image.Image) -> None:
    """As a PNG of few colours: the console has no more than 64."""
    temporary = out.with_name(f".{out.name}")
    picture.quantize(256, dither=Image.Dither.NONE).save(temporary, "PNG", optimize=True)
    temporary.replace(out)
