"""Exported policies: the weights alone, as safetensors, with a JSON card beside them. What `models/` holds.

No pickle: a model file from a stranger can be wrong, but it cannot run code.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from mario_rl.environment.actions import ACTION_SETS, ActionSet
from mario_rl.errors import UserError
from mario_rl.files import replace_durably
from mario_rl.network import NetworkShape, QNetwork

FORMAT = "mario-rl-policy-1"


class PolicyError(UserError):
    """A file is no policy, or not one for this network; the message is for the user."""


def export_policy(
    path: Path, state: dict[str, torch.Tensor], shape: NetworkShape, actions: ActionSet, card: dict[str, Any]
) -> None:
    """Write weights and card."""
    metadata = {"format": FORMAT, "actions": actions, "shape": json.dumps(shape._asdict())}
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, save(contiguous, metadata))
    replace_durably(path.with_suffix(".json"), (json.dumps(card | metadata, indent=2) + "\n").encode())


def load_policy(path: Path, shape: NetworkShape, actions: ActionSet) -> dict[str, torch.Tensor]:
    """The weights in a file, checked against the network they are for."""
    if not path.is_file():
        raise PolicyError(f"There is no model {path}: give the path of a .safetensors file, as in models/.")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise PolicyError(f"{path} is no model file ({error}): give a .safetensors file, as in models/.") from None
    if metadata.get("format") != FORMAT:
        raise PolicyError(f"{path} was not exported by this project: give a .safetensors file from its models/ folder.")
    if metadata.get("actions") != actions:
        advice = f": add --set ACTIONS={metadata['actions']}" if metadata.get("actions") in ACTION_SETS else ""
        raise PolicyError(
            f"{path} was trained with ACTIONS = {metadata.get('actions')!r}, this run has {actions!r}{advice}."
        )
    expected = QNetwork(shape).state_dict()
    if {name: tensor.shape for name, tensor in state.items()} != {name: t.shape for name, t in expected.items()}:
        raise PolicyError(
            f"{path} is another network ({metadata.get('shape', 'of unknown shape')[:120]}) than this run's "
            f"({json.dumps(shape._asdict())}): set NETWORK_CHANNELS and HIDDEN_UNITS to the model's."
        )
    if not all(bool(torch.isfinite(tensor).all()) for tensor in state.values()):
        raise PolicyError(f"{path} holds weights that are not numbers: give another model.")
    return state
