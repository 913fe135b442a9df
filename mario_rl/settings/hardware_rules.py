"""What the user says about the machine; `hardware.py` decides the rest."""

from dataclasses import dataclass
from typing import Annotated, Literal

from mario_rl.ranges import Between


@dataclass(frozen=True)
class HardwareRules:
    """Wishes, not facts."""

    device: Literal["auto", "cpu", "cuda"]
    use_amp: bool
    compile: Literal["auto", "on", "off"]
    learner_threads: Annotated[int, Between(0, 1024)]  # 0: what is left
    training_workers: Annotated[int, Between(1, 64)]
    use_data_parallel: bool
