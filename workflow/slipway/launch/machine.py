"""What the machine that trains lacks or offers, and what the training uses on it.

Decided inside the job, since the machine that submits may have other packages. It is recorded with the segment and
is no part of what a checkpoint depends on: another machine may decide otherwise and go on with the same training.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.version import Version

from slipway.config.kernels import FLASH_ATTENTION, FLASHINFER_KERNELS
from slipway.config.verl import ACTOR, REF
from slipway.launch import byte_code
from slipway.manifest import write_json
from slipway.surroundings import is_installed

RECORD = "machine.json"
FLASHINFER_SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
COMPILE_CACHE_OFF = "VLLM_DISABLE_COMPILE_CACHE"
# The first torch that replaces a compiled file as a whole (pytorch/pytorch#162432). Before, engines that started at
# the same time damaged each other's, for which verl has vLLM compile anew at each start.
TORCH_OF_WHOLE_FILES = Version("2.10")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decision:
    """One thing that the machine decided: verl keys (dotted) and variables of the environment, and why."""

    why: str
    verl: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def decide(
    resolved: Mapping[str, Any],
    environment: Mapping[str, str],
    has: Callable[[str], bool] = is_installed,
    version_of: Callable[[str], str] = version,
) -> list[Decision]:
    """Return what this machine needs otherwise than a resolved verl config and `environment` say.

    What the user's settings or environment say stays. `has` tells whether a Python package is installed, and
    `version_of` the version of one that is.
    """
    decisions = [_byte_code(environment)]
    if resolved["trainer"]["device"] == "cuda":
        decisions += [
            _attention(resolved, has),
            _rotary_embedding(resolved, has),
            _sampler(environment, has),
            _compile_cache(environment, has, version_of),
        ]
    return [decision for decision in decisions if decision]


def record(decisions: list[Decision], segment_folder: Path) -> None:
    """Say what was decided, in the log and in the segment's folder."""
    for decision in decisions:
        logger.info("this machine: %s", decision.why)
    write_json(segment_folder / RECORD, {"decisions": [asdict(decision) for decision in decisions]})


def _byte_code(environment: Mapping[str, str]) -> Decision | None:
    variables = byte_code.environment_for(environment)
    if not variables:
        return None
    where = variables[byte_code.FOLDER]
    return Decision(f"Python may not keep byte code beside its packages: kept in {where}", environment=variables)


def _attention(resolved: Mapping[str, Any], has: Callable[[str], bool]) -> Decision | None:
    flash = [role for role in (ACTOR, REF) if _overrides(resolved, role).get("attention_backend") == "flash"]
    if not flash or any(map(has, FLASH_ATTENTION)):
        return None
    return Decision(
        "flash-attn is not installed: attention by cuDNN, through Transformer Engine",
        {f"{role}.{_OVERRIDES}.attention_backend": "fused" for role in flash},
    )


def _rotary_embedding(resolved: Mapping[str, Any], has: Callable[[str], bool]) -> Decision | None:
    """Megatron's own rotary embedding takes the sequences of a packed batch one by one, in Python."""
    unsaid = [role for role in (ACTOR, REF) if "apply_rope_fusion" not in _overrides(resolved, role)]
    if not unsaid or not has("transformer_engine") or _has_latent_attention(resolved):
        return None
    return Decision(
        "Transformer Engine is installed: its kernel for rotary embeddings",
        {f"{role}.{_OVERRIDES}.apply_rope_fusion": "true" for role in unsaid},
    )


def _sampler(environment: Mapping[str, str], has: Callable[[str], bool]) -> Decision | None:
    if FLASHINFER_SAMPLER in environment or not has("flashinfer") or any(map(has, FLASHINFER_KERNELS)):
        return None
    return Decision(
        "FlashInfer has no compiled kernels here: vLLM samples by its own", environment={FLASHINFER_SAMPLER: "0"}
    )


def _compile_cache(
    environment: Mapping[str, str], has: Callable[[str], bool], version_of: Callable[[str], str]
) -> Decision | None:
    if COMPILE_CACHE_OFF in environment or not has("vllm") or Version(version_of("torch")) < TORCH_OF_WHOLE_FILES:
        return None
    return Decision("vLLM keeps what it compiles for the next start", environment={COMPILE_CACHE_OFF: "0"})


_OVERRIDES = "megatron.override_transformer_config"


def _overrides(resolved: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    section: Any = resolved
    for part in f"{role}.{_OVERRIDES}".split("."):
        section = section.get(part) or {}
    return section  # type: ignore[no-any-return]


def _has_latent_attention(resolved: Mapping[str, Any]) -> bool:
    """Megatron fuses the rotary embedding of multi-head latent attention only with YaRN, and only for training."""
    config = Path(resolved["actor_rollout_ref"]["model"]["path"]) / "config.json"
    return "kv_lora_rank" in json.loads(config.read_text(encoding="utf-8"))
