"""The plan: what a run is going to do with this machine, as the user reads it before anything starts."""

import textwrap

from mario_rl.settings.hardware import HardwarePlan, megabytes, num_cores
from mario_rl.settings.schema import SOURCE_NAMES, ChosenSettings, Source

LINE_LENGTH = 120
EMULATORS = {"fast": "fast: our own, compiled", "nes_py": "nes-py"}


def describe_plan(plan: HardwarePlan, chosen: ChosenSettings, run_name: str, *, serial: bool) -> str:
    """A dozen lines: device, threads, precision, compilation, memory, and where the settings come from."""
    settings = chosen.settings
    if serial:
        collectors = f"1 collector with {settings.envs_per_process} emulators inside this process"
    else:
        plural = "es" if settings.num_processes > 1 else ""
        collectors = (
            f"{settings.num_processes} collector process{plural} with 1 thread and {settings.envs_per_process} "
            "emulators each"
        )
    use = ", half of them compute goals" if plan.goals_ahead else ""
    if plan.workers > 1:
        use = f" for {plan.workers} training workers"
    title = f"Mario RL, run {run_name}: level {' '.join(map(str, settings.levels_played))}, {settings.actions} actions"
    lines = [
        f"{title}, seed {settings.seed}",
        f"  device       {plan.device.type}: {plan.device_name}, {num_cores()} cores",
        f"  emulator     {EMULATORS[settings.emulator]}",
        f"  threads      {collectors}; learner {plan.learner_threads}{use}",
        f"  precision    {plan.precision.value}: {plan.precision.reason}",
        f"  compile      {plan.compilation.value}: {plan.compilation.reason}",
        f"  memory       replay {megabytes(plan.replay_bytes)}, rings {megabytes(plan.ring_bytes)}",
    ]
    base: Source = "run" if "run" in chosen.sources.values() else "config"
    lines.append(f"  settings     from {SOURCE_NAMES[base]}, except")
    stronger: tuple[Source, ...] = ("cpu", "set")
    for source in stronger:
        names = [name for name, origin in chosen.sources.items() if origin == source]
        if names:
            values = ", ".join(f"{name}={_compact(getattr(settings, name.lower()))}" for name in names)
            lines += textwrap.wrap(
                f"from {SOURCE_NAMES[source]}: {values}",
                LINE_LENGTH,
                initial_indent=" " * 15,
                subsequent_indent=" " * 17,
                break_on_hyphens=False,
            )
    if lines[-1].endswith("except"):
        lines[-1] = lines[-1].removesuffix(", except")
    return "\n".join(lines)


def _compact(value: object) -> str:
    return str(value).replace(" ", "")  # a wrapped line must not break inside a value
