"""The plan: what a run is going to do with this machine, as the user reads it before anything starts."""

import textwrap

from mario_rl.errors import shown
from mario_rl.machine.facts import num_cores
from mario_rl.settings.choosing import SOURCE_NAMES, ChosenSettings, Source
from mario_rl.settings.hardware import HardwarePlan, megabytes

LINE_LENGTH = 120
EMULATORS = {"fast": "fast: our own, compiled", "nes_py": "nes-py"}


def describe_plan(plan: HardwarePlan, chosen: ChosenSettings, run_name: str, *, serial: bool) -> str:
    """A dozen lines: device, threads, precision, compilation, memory, and where the settings come from."""
    settings = chosen.settings
    play, task = settings.play, settings.task
    num_processes, num_envs = settings.collecting.num_processes, settings.collecting.envs_per_process
    if serial:
        collectors = f"1 collector with {num_envs} emulators inside this process"
    else:
        plural = "es" if num_processes > 1 else ""
        collectors = f"{num_processes} collector process{plural} with 1 thread and {num_envs} emulators each"
    use = ", half of them compute targets" if plan.targets_ahead else ""
    if plan.workers > 1:
        use = f" for {plan.workers} training workers"
    title = f"Mario RL, run {run_name}: level {' '.join(map(str, task.levels_played))}, {play.actions} actions"
    cores = num_cores()
    lines = [
        f"{title}, seed {settings.run.seed}",
        f"  device       {plan.device.type}: {plan.device_name}, {cores} core{'s' if cores > 1 else ''}",
        f"  emulator     {EMULATORS[play.emulator]}",
        f"  threads      {collectors}; learner {plan.learner_threads}{use}",
        f"  precision    {plan.precision.value}: {plan.precision.reason}",
        f"  compile      {plan.compilation.value}: {plan.compilation.reason}",
        f"  memory       replay {megabytes(plan.replay_bytes)}, rings {megabytes(plan.ring_bytes)}",
    ]
    base: Source = "run" if "run" in chosen.sources.values() else "config"
    lines.append(f"  settings     from {SOURCE_NAMES[base]}, except")
    flat = settings.flat()
    stronger: tuple[Source, ...] = ("cpu", "set")
    for source in stronger:
        names = [name for name, origin in chosen.sources.items() if origin == source]
        if names:
            values = ", ".join(f"{name}={_compact(flat[name])}" for name in names)
            lines += _wrapped(f"from {SOURCE_NAMES[source]}: {values}")
    if lines[-1].endswith("except"):
        lines[-1] = lines[-1].removesuffix(", except")
    if chosen.added:
        values = ", ".join(f"{name}={_compact(flat[name])}" for name in chosen.added)
        lines += _wrapped(f"newer than the run: {values}")
    if chosen.left_out:
        lines += _wrapped(
            f"of the run, but no settings any more: {', '.join(shown(name)[1:-1] for name in chosen.left_out)}"
        )
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, LINE_LENGTH, initial_indent=" " * 15, subsequent_indent=" " * 17, break_on_hyphens=False)


def _compact(value: object) -> str:
    return str(value).replace(" ", "")  # a wrapped line must not break inside a value
