"""What the machine that trains lacks, and what the training uses instead.

Decided inside the job, since the machine that submits may have other packages. It is recorded with the segment and
is no part of what a checkpoint depends on: another machine may decide otherwise and go on with the same training.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipway.config.kernels import FLASH_ATTENTION, FLASHINFER_KERNELS
from slipway.config.verl import ACTOR, REF
from slipway.manifest import write_json
from slipway.surroundings import is_installed

RECORD = "machine.json"
FLASHINFER_SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decision:
    """One thing that the machine decided: verl keys (dotted) and variables of the environment, and why."""

    why: str
    verl: Mapping[str, str]
    environment: Mapping[str, str]


def decide(
    resolved: Mapping[str, Any], environment: Mapping[str, str], has: Callable[[str], bool] = is_installed
) -> list[Decision]:
    """Return what this machine needs otherwise than a resolved verl config says; nothing on the CPU.

    What the user's environment sets stays. `has` tells whether a Python package is installed.
    """
    if resolved["trainer"]["device"] != "cuda":
        return []
    decisions = []
    asked = {role: _attention(resolved, role) for role in (ACTOR, REF)}
    flash = [role for role, backend in asked.items() if backend == "flash"]
    if flash and not any(map(has, FLASH_ATTENTION)):
        decisions.append(
            Decision(
                "flash-attn is not installed: attention by cuDNN, through Transformer Engine",
                {f"{role}.megatron.override_transformer_config.attention_backend": "fused" for role in flash},
                {},
            )
        )
    if FLASHINFER_SAMPLER not in environment and has("flashinfer") and not any(map(has, FLASHINFER_KERNELS)):
        decisions.append(
            Decision("FlashInfer has no compiled kernels here: vLLM samples by its own", {}, {FLASHINFER_SAMPLER: "0"})
        )
    return decisions


def record(decisions: list[Decision], segment_folder: Path) -> None:
    """Say what was decided, in the log and in the segment's folder."""
    for decision in decisions:
        logger.info("this machine: %s", decision.why)
    write_json(segment_folder / RECORD, {"decisions": [asdict(decision) for decision in decisions]})


def _attention(resolved: Mapping[str, Any], role: str) -> str | None:
    section: Any = resolved
    for part in f"{role}.megatron.override_transformer_config".split("."):
        section = section.get(part) or {}
    value = section.get("attention_backend")
    return None if value is None else str(value)
