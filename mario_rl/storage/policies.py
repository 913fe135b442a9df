"""Exported policies: the weights alone, as safetensors, with a JSON card beside them. What `models/` holds.

No pickle: a model file from a stranger can be wrong, but it cannot run code.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from mario_rl.agent.network import NETWORK_SETTINGS, NetworkShape, QNetwork
from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ACTION_SETS, ActionSet
from mario_rl.environment.observation import OBSERVATION
from mario_rl.errors import UserError
from mario_rl.storage.files import replace_durably

FORMAT = "mario-rl-policy-3"


class PolicyError(UserError):
    """A file is no policy, or not one for this network; the message is for the user."""


class Policy(NamedTuple):
    """Weights, and what one must know to play with them."""

    weights: dict[str, torch.Tensor]
    shape: NetworkShape
    actions: ActionSet
    frame_skip: int
    levels: tuple[Level, ...]  # that it was trained on

    def network(self) -> QNetwork:
        """The network, ready to act."""
        network = QNetwork(self.shape).eval().requires_grad_(False)
        network.load_state_dict(self.weights)
        return network


def export_policy(path: Path, policy: Policy, card: dict[str, Any], *, half: bool = False) -> None:
    """Write weights and card. With `half`, weights are rounded to 16 bits: half of the file, for models that ship."""
    metadata = {
        "format": FORMAT,
        "observation": OBSERVATION,
        "levels": " ".join(map(str, policy.levels)),
        "actions": policy.actions,
        "frame_skip": str(policy.frame_skip),
        "shape": json.dumps(policy.shape._asdict()),
    }
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.weights.items()}
    if half:
        contiguous = {name: _rounded(tensor) for name, tensor in contiguous.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, save(contiguous, metadata))
    replace_durably(path.with_suffix(".json"), (json.dumps(metadata | card, indent=2) + "\n").encode())


def read_policy(path: Path) -> Policy:
    """The policy in a file, checked as far as it can be without knowing what it is for."""
    try:
        if not path.is_file():
            raise PolicyError(f"There is no model {path}: give the path of a .safetensors file, as in models/.")
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            state = {name: _widened(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except OSError as error:  # not only in reading: a name may be too long, or a folder closed to us
        raise PolicyError(
            f"{path} cannot be read ({error.strerror or error}): give a .safetensors file, as in models/."
        ) from None
    except SafetensorError as error:
        raise PolicyError(f"{path} is no model file ({error}): give a .safetensors file, as in models/.") from None
    except (MemoryError, RuntimeError):  # torch's own word for too little memory is a RuntimeError
        raise PolicyError(f"{path} does not fit into memory: give another model.") from None
    if not metadata.get("format", "").startswith("mario-rl-policy-"):
        raise PolicyError(f"{path} was not exported by this project: give a .safetensors file from its models/ folder.")
    if metadata["format"] != FORMAT:
        raise PolicyError(
            f"{path} is of another version of this project ({metadata['format'][:40]}, this one reads {FORMAT}): "
            "train it again."
        )
    if metadata.get("observation") != OBSERVATION:
        raise PolicyError(
            f"{path} was trained with other observations ({metadata.get('observation', 'unknown')[:80]}) "
            f"than this version's ({OBSERVATION}): train it again."
        )
    try:
        shape = NetworkShape.from_json(json.loads(metadata["shape"]))
        levels = tuple(_parse_level(text) for text in metadata["levels"].split())
        frame_skip = int(metadata["frame_skip"])
        actions: Any = metadata["actions"]
        if actions not in ACTION_SETS or len(ACTION_SETS[actions]) != shape.num_actions or not 1 <= frame_skip <= 16:
            raise ValueError
        if not levels:
            raise ValueError
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError):
        raise PolicyError(f"{path} does not tell what it was trained for: give another model.") from None
    with torch.device("meta"):  # shapes alone: a file may claim any size
        expected = {name: tensor.shape for name, tensor in QNetwork(shape).state_dict().items()}
    if {name: tensor.shape for name, tensor in state.items()} != expected:
        raise PolicyError(f"{path} does not hold the network that it claims to: give another model.")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in state.values()):
        raise PolicyError(f"{path} holds weights that are not numbers: give another model.")
    return Policy(state, shape, actions, frame_skip, levels)


def load_policy(path: Path, shape: NetworkShape, actions: ActionSet) -> dict[str, torch.Tensor]:
    """The weights in a file, checked against the network they are for."""
    policy = read_policy(path)
    if policy.actions != actions:
        raise PolicyError(
            f"{path} was trained with ACTIONS = {policy.actions!r}, this run has {actions!r}: "
            f"add --set ACTIONS={policy.actions}."
        )
    if policy.shape != shape:
        raise PolicyError(
            f"{path} is another network ({json.dumps(policy.shape._asdict())}) than this run's "
            f"({json.dumps(shape._asdict())}): "
            f"set {NETWORK_SETTINGS} and GAMMA to what it was trained with."
        )
    return policy.weights


def _parse_level(text: str) -> Level:
    world, stage = (int(number) for number in text.split("-"))
    if not (1 <= world <= 8 and 1 <= stage <= 4):
        raise ValueError
    return Level(world, stage)


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype == torch.float16 else tensor
