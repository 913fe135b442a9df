"""Reads config_optimized.py, which belongs to the user and may hold anything."""

import importlib
import sys
import traceback
import types
from pathlib import Path
from typing import Any

from mario_rl.errors import shown
from mario_rl.settings.choosing import OVERRIDES_NAME, SettingsError
from mario_rl.settings.settings import NAMES


def load_config_file(project: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings in config_optimized.py, and its CPU_OVERRIDES."""
    if str(project) not in sys.path:
        sys.path.insert(0, str(project))
    try:
        module = importlib.import_module("config_optimized")
    except ModuleNotFoundError as error:
        if error.name == "config_optimized":
            raise SettingsError(["config_optimized.py is missing: restore it from the repository."]) from None
        raise SettingsError(
            [f"config_optimized.py cannot be imported ({error}): install it or remove the line."]
        ) from None
    except SyntaxError as error:
        raise SettingsError([f"config_optimized.py, line {error.lineno}: {error.msg}."]) from None
    except Exception as error:  # whatever a user's edit may raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if "config_opt" in frame.filename]
        where = f", line {lines[-1]}" if lines else ""
        raise SettingsError([f"config_optimized.py{where}: {type(error).__name__}: {error}."]) from None
    return read_config_module(module)


def read_config_module(module: types.ModuleType) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a config module, and its CPU_OVERRIDES."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    values = {name: value for name, value in public.items() if name.isupper()}
    overrides = values.pop(OVERRIDES_NAME, {})
    faults = [
        f"{name} in config_optimized.py is not read: write it in capitals, as {name.upper()}."
        for name in public
        if not name.isupper() and name.upper() in NAMES
    ]
    if not isinstance(overrides, dict):
        faults.append(f"{OVERRIDES_NAME} must be a dictionary of settings, not {shown(overrides)}.")
    if faults:
        raise SettingsError(faults)
    return values, overrides
