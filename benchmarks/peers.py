"""Decisions a second while learning: Stable-Baselines3's DQN and the product, same network, same replay ratio."""

import contextlib
import io
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import (
    BROKEN_INSTALL,
    MissingPackageError,
    StudyResult,
    as_is,
    at_least,
    first_line,
    interleave,
    quotient,
)
from benchmarks.noise import peak_flops
from benchmarks.one_game import OneGame
from benchmarks.product import SHORT_WARMUP, nes_py_changes, product_device, product_settings, run_product
from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.emulation.emulator import EmulatorName
from mario_rl.environment.task import PlayRules, TaskRules
from mario_rl.experience import FRAME_SIZE, STACK_SIZE
from mario_rl.machine.facts import num_cores
from mario_rl.settings.hardware import make_plan
from mario_rl.settings.settings import Settings

QUESTION = "How fast does Stable-Baselines3's DQN learn on the same game, with the same network and replay ratio?"
TEACHES = (
    "Most of the advantage over a trainer on nes-py is the emulator. On the same emulator both are bound by the "
    "arithmetic of small convolutions, where bfloat16, for which Stable-Baselines3 has no setting, makes up for the "
    "further forward pass that double Q-learning costs. What that pass buys is in [method.md](method.md)."
)
SECONDS = {"quick": 20, "full": 260}
NUM_GAMES = 8
TICKS_PER_TRAINING = 4  # of all games, between two trainings of Stable-Baselines3

# Forward passes that a sample costs: a backward pass counts as two.
PASSES_OF_DQN = 4  # online with backward, target
PASSES_OF_OURS = 5  # double Q-learning also asks the online network about the next state


def run(quick: bool) -> StudyResult:
    """Both on both emulators, in turns."""
    train_peer = _stable_baselines()
    seconds = 2.0 if quick else 15.0
    settings = product_settings()
    shape, replay_ratio = settings.network_shape, settings.flow.replay_ratio
    plan = make_plan(settings, serial=False)
    processor = "GPU" if plan.device.type == "cuda" else "CPU"

    def ours(emulator: EmulatorName) -> Callable[[], float]:
        changes = {"WARMUP_EXPERIENCES": SHORT_WARMUP, "EVALUATION_DECISIONS": 0}
        changed = product_settings(changes | (nes_py_changes() if emulator == "nes_py" else {}))
        return lambda: run_product(changed, seconds).decisions_per_second

    variants = {
        "Stable-Baselines3, nes-py": lambda: train_peer(settings, "nes_py", seconds),
        "Mario RL, our emulator": ours("fast"),
    }
    if not quick:
        variants["Stable-Baselines3, our emulator"] = lambda: train_peer(settings, "fast", seconds)
        variants["Mario RL, nes-py"] = ours("nes_py")
    # Each run has a warm-up of its own.
    measured = interleave(variants, repeats=1 if quick else 3, warm_up=False)
    peak = peak_flops(plan.device)
    rows = []
    for name, sample in measured.items():
        passes = (PASSES_OF_OURS if name.startswith("Mario") else PASSES_OF_DQN) * replay_ratio + 1
        share = sample.median * passes * flops_of_forward(shape) / peak
        rows.append(
            {
                "trainer": name,
                "decisions/s": f"{sample.median:,.0f}",
                "spread": f"{sample.spread:.0%}",
                f"of the {processor}'s arithmetic": f"{share:.0%}",
            }
        )
    ratios = {
        "ours on our emulator against theirs on nes-py": at_least(
            quotient(measured["Mario RL, our emulator"], measured["Stable-Baselines3, nes-py"]), 2.5, "x"
        )
    }
    if not quick:
        ratios["nes-py in both"] = at_least(
            quotient(measured["Mario RL, nes-py"], measured["Stable-Baselines3, nes-py"]), 1.5, "x"
        )
        ratios["our emulator in both"] = as_is(
            quotient(measured["Mario RL, our emulator"], measured["Stable-Baselines3, our emulator"]), "x"
        )
    return StudyResult(
        rows,
        ratios,
        [
            f"Replay ratio {replay_ratio:g}, batches of {settings.learning.batch_size}, {NUM_GAMES} games, network "
            f"{shape.channels} with {2 * shape.hidden_units} hidden units in both; theirs has a plain "
            "head, ours a dueling one of histograms.",
            f"Both train on {plan.device.type} ({plan.device_name}): theirs float32, ours {plan.precision.value}.",
            f"The {processor}'s arithmetic: {peak / 1e9:.0f} GFLOP/s in a large float32 matrix product, measured just "
            f"now. A forward pass is {flops_of_forward(shape) / 1e6:.1f} MFLOP; a sample is "
            f"worth {PASSES_OF_DQN} of them in theirs and {PASSES_OF_OURS} in ours.",
        ],
    )


def flops_of_forward(shape: NetworkShape) -> float:
    """Multiplications and additions for one state."""
    network = QNetwork(shape)
    total = 0.0

    def count(module: nn.Module, _: Any, output: Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Conv2d | nn.Linear):
            each = module.weight[0].numel()  # for one output
            total += 2.0 * each * output.numel()

    for module in network.modules():
        module.register_forward_hook(count)
    with torch.no_grad():
        network.eval()(torch.zeros(1, STACK_SIZE, FRAME_SIZE, FRAME_SIZE))
    return total


def _stable_baselines() -> Callable[[Settings, EmulatorName, float], float]:
    """A function that trains with Stable-Baselines3 for a while and gives its decisions a second."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # it imports gym, whose notice tells a user nothing
            import gymnasium
            from stable_baselines3 import DQN
            from stable_baselines3.common.callbacks import BaseCallback
            from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
            from stable_baselines3.common.vec_env import DummyVecEnv
    except BROKEN_INSTALL as error:
        raise MissingPackageError(
            f"stable-baselines3 cannot be imported ({first_line(error)}): pip install -r requirements-bench.txt"
        ) from None

    class Mario(gymnasium.Env):  # type: ignore[misc, unused-ignore]
        """The same game for a trainer that knows Gymnasium."""

        observation_space = gymnasium.spaces.Box(0, 255, (STACK_SIZE, FRAME_SIZE, FRAME_SIZE), np.uint8)

        def __init__(self, play: PlayRules, task: TaskRules, seed: int) -> None:
            self._game = OneGame(play, task, seed)
            self.action_space = gymnasium.spaces.Discrete(self._game.num_actions)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            return self._game.reset(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return *self._game.step(int(action)), {}

        def close(self) -> None:
            self._game.close()

    class Trunk(BaseFeaturesExtractor):  # type: ignore[misc, unused-ignore]
        """Everything of our network up to its head."""

        def __init__(self, observation_space: Any, shape: NetworkShape) -> None:
            super().__init__(observation_space, 2 * shape.hidden_units)
            network = QNetwork(shape)
            assert isinstance(network.features, nn.Module)
            self._layers = nn.Sequential(network.features, nn.Flatten(), network.hidden, network.hidden_norm, nn.ReLU())

        def forward(self, observations: Tensor) -> Tensor:
            features: Tensor = self._layers(observations)
            return features

    class Clock(BaseCallback):  # type: ignore[misc, unused-ignore]
        """Measures from when learning has begun, and ends it."""

        def __init__(self, seconds: float) -> None:
            super().__init__()
            self._seconds = seconds
            self._begun = 0.0
            self._steps_before = 0
            self.rate = 0.0

        def _on_step(self) -> bool:
            if self.num_timesteps < SHORT_WARMUP + 200:
                return True
            if not self._begun:
                self._begun, self._steps_before = time.perf_counter(), self.num_timesteps
            elapsed = time.perf_counter() - self._begun
            if elapsed >= self._seconds:
                self.rate = (self.num_timesteps - self._steps_before) / elapsed
            return elapsed < self._seconds

    def train(settings: Settings, emulator: EmulatorName, seconds: float) -> float:
        play, rules = replace(settings.play, emulator=emulator), settings.learning
        environments = DummyVecEnv([partial(Mario, play, settings.task, number) for number in range(NUM_GAMES)])
        torch.set_num_threads(num_cores())
        samples = settings.flow.replay_ratio * TICKS_PER_TRAINING * NUM_GAMES
        model = DQN(
            "CnnPolicy",
            environments,
            buffer_size=10_000,
            learning_starts=SHORT_WARMUP,
            batch_size=rules.batch_size,
            train_freq=TICKS_PER_TRAINING,
            gradient_steps=max(1, round(samples / rules.batch_size)),
            target_update_interval=6_400,
            policy_kwargs={
                "features_extractor_class": Trunk,
                "features_extractor_kwargs": {"shape": settings.network_shape},
                "net_arch": [],
            },
            device=product_device(settings),
        )
        clock = Clock(seconds)
        model.learn(10**9, callback=clock)
        environments.close()
        return clock.rate

    return train
