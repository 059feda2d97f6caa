"""The time limit of a training job against what its first segment has to do in it: start, make a step, save."""

from collections.abc import Iterator

from slipway.config.schema import Run
from slipway.models.architecture import Architecture
from slipway.preflight.findings import Finding, Severity
from slipway.preflight.planning.calibration import GIB, SAVE_BANDWIDTH, START_UP
from slipway.preflight.planning.hardware import gpu_with_memory
from slipway.preflight.planning.memory import checkpoint_bytes_of
from slipway.preflight.planning.step_time import step_time
from slipway.preflight.rules.memory import forecast_of
from slipway.preflight.subject import Subject


def check_walltime(name: str, run: Run, model: Architecture, subject: Subject) -> Iterator[Finding]:
    """Warn of a limit that may be too short for one step; it is no error, the forecast being a roofline.

    A job that cannot make a step within its limit would be requeued for nothing; the launcher ends it then.
    """
    known, layout = forecast_of(subject), subject.layout
    if known is None or layout is None or subject.gpu_memory is None:
        return
    work, memory = known
    gpu = gpu_with_memory(subject.gpu_memory / GIB)
    step = step_time(model, layout, work, gpu, run.gpus_per_node, max(memory.cache_tokens, work.length)).total
    save = checkpoint_bytes_of(model) / (SAVE_BANDWIDTH * run.nodes)
    needed = (START_UP + step + save) / 60
    if needed <= run.runtime_minutes:
        return
    yield Finding(
        "S21",
        Severity.WARNING,
        f"runs.{name}.runtime_minutes",
        run.runtime_minutes,
        f"a segment needs some {needed:.0f} minutes for one step: {START_UP / 60:.0f} to start, {step / 60:.0f} for a "
        f"step whose responses are all of the greatest length, {save / 60:.0f} to save.",
        "Use a longer limit, fewer prompts a step, or more GPUs.",
    )
