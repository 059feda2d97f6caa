"""Where, when and with what a product was made: the sidecar beside a manifest."""

import os
import platform
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from slipway.manifest.files import write_json

# What can change a result; `report` prints them.
STACK = (
    "slipway",
    "verl",
    "megatron-core",
    "mbridge",
    "torch",
    "transformers",
    "tokenizers",
    "ray",
    "vllm",
    "transformer-engine",
    "datasets",
    "reasoning-gym",
    "numpy",
    "snakemake",
    "submitit",
)


def write_sidecar(path: Path, stage: str, started: float, surroundings: dict[str, Any]) -> None:
    """Write the provenance of work that began at `started` (seconds since the epoch) and ends now."""
    write_json(path, describe(stage, started, time.time(), surroundings))


def surroundings() -> dict[str, Any]:
    """Return host, command, versions and code state as JSON."""
    return {
        "host": socket.gethostname(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": installed_versions(),
        "code": code_state(),
    }


def describe(stage: str, started: float, ended: float, surroundings: dict[str, Any]) -> dict[str, Any]:
    """Return times and surroundings as JSON."""
    times = {"started": _iso(started), "ended": _iso(ended), "seconds": round(ended - started, 3)}
    return {"stage": stage, **times, **surroundings}


def installed_versions() -> dict[str, str]:
    """Return the installed version of each package of `STACK` that is there."""
    versions = {}
    for name in STACK:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def code_state() -> dict[str, Any] | None:
    """Return the commit that the code was at and whether it had uncommitted changes; None outside git."""
    root = Path(__file__).resolve().parent
    try:
        commit = _git(root, "rev-parse", "HEAD")
        dirty = bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "uncommitted_changes": dirty}


def _git(folder: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=30
    )
    return result.stdout.strip()


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
