"""Free disk against the checkpoints that a run keeps."""

import shutil
from pathlib import Path

from slipway.config.schema import Run
from slipway.models.architecture import Architecture
from slipway.preflight.findings import Finding, Severity
from slipway.preflight.planning.calibration import GIB
from slipway.preflight.planning.memory import checkpoint_bytes_of, weights_bytes_of


def check_disk(name: str, run: Run, model: Architecture, folder: Path) -> list[Finding]:
    """Compare the free bytes where `folder` is with the checkpoints to come; it need not exist yet.

    An error when not even one checkpoint fits: verl's first save would fail.
    """
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    one = checkpoint_bytes_of(model)
    # an older one goes only when the next is whole; what an earlier start has saved is not asked for again
    all_kept = min(run.keep_checkpoints + 1, -(-run.steps // run.save_every)) * one + evaluated_bytes(run, model)
    if free >= all_kept:
        return []
    return [
        Finding(
            "S18",
            Severity.ERROR if free < one else Severity.WARNING,
            f"runs.{name}.keep_checkpoints",
            run.keep_checkpoints,
            f"{free / GIB:.1f} GiB are free at {existing}, a checkpoint takes {one / GIB:.1f}, and up to "
            f"{all_kept / GIB:.1f} are there at once{_of_evaluated(run, model)}.",
            "Free disk, keep fewer checkpoints, "
            + ("evaluate fewer (checkpoints.evaluate_every), " if run.evaluated_steps else "")
            + "or let `results` be a link to a larger disk.",
        )
    ]


def evaluated_bytes(run: Run, model: Architecture) -> float:
    """Return what evaluated earlier steps take: the weights of each twice, as Megatron's and as Hugging Face's."""
    return 2 * len(run.evaluated_steps) * weights_bytes_of(model)


def _of_evaluated(run: Run, model: Architecture) -> str:
    if not run.evaluated_steps:
        return ""
    size = evaluated_bytes(run, model) / GIB
    return f", {size:.1f} of them weights and exported models of {len(run.evaluated_steps)} evaluated steps"
