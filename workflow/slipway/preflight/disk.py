"""Free disk against the checkpoints that a run keeps."""

import shutil
from pathlib import Path

from slipway.config.schema import Run
from slipway.models.architecture import Architecture
from slipway.preflight.findings import Finding, Severity
from slipway.preflight.planning.calibration import GIB
from slipway.preflight.planning.memory import checkpoint_bytes_of


def check_disk(name: str, run: Run, model: Architecture, folder: Path) -> list[Finding]:
    """Compare the free bytes where `folder` is with the checkpoints to come; it need not exist yet.

    An error when not even one checkpoint fits: verl's first save would fail.
    """
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    one = checkpoint_bytes_of(model)
    # an older one goes only when the next is whole; what an earlier start has saved is not asked for again
    all_kept = min(run.keep_checkpoints + 1, -(-run.steps // run.save_every)) * one
    if free >= all_kept:
        return []
    return [
        Finding(
            "S18",
            Severity.ERROR if free < one else Severity.WARNING,
            f"runs.{name}.keep_checkpoints",
            run.keep_checkpoints,
            f"{free / GIB:.1f} GiB are free at {existing}, a checkpoint takes {one / GIB:.1f}, and up to "
            f"{all_kept / GIB:.1f} are there at once.",
            "Free disk, keep fewer checkpoints, or let `results` be a link to a larger disk.",
        )
    ]
