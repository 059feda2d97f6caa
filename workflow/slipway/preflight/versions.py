"""The installed packages: pairs that are known not to run together, and kernels that a GPU training asks for."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from packaging.specifiers import SpecifierSet

from slipway.config.kernels import FLASH_ATTENTION
from slipway.preflight.findings import Finding, Severity
from slipway.preflight.subject import TRANSFORMER, Subject
from slipway.surroundings import is_installed


class Pair(NamedTuple):
    """Two packages that fail together in these versions, and how."""

    one: str
    versions: str
    other: str
    other_versions: str
    why: str
    remedy: str


KNOWN_BAD = (
    Pair(
        *("mbridge", "<=0.15.1", "megatron-core", ">=0.18.dev0"),
        "mbridge imports ModelType.encoder_and_decoder, which is gone (verl#6936): the workers die at their start.",
        "Use megatron-core 0.16.1.",
    ),
    Pair(
        *("verl", "==0.9.1", "transformers", ">=5.11"),
        "verl's extra `megatron` excludes it.",
        "Use transformers 5.10.4.",
    ),
    Pair(
        *("transformers", ">=5.10,<5.11", "tokenizers", ">0.23.0"),
        "transformers refuses to be imported.",
        "Use tokenizers 0.22.2.",
    ),
    Pair(
        *("vllm", "==0.22.1", "xgrammar", ">0.2.0"),
        "vLLM pins apache-tvm-ffi 0.1.9, which this xgrammar does not accept.",
        "Use xgrammar 0.2.0.",
    ),
)


def installed() -> dict[str, str]:
    """Return the versions of the packages that some pair is about."""
    found = {}
    for name in {name for pair in KNOWN_BAD for name in (pair.one, pair.other)}:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def check_pairs(versions: Mapping[str, str]) -> list[Finding]:
    """Return an error for each pair of installed packages that fails together."""
    return [
        Finding(
            "S14",
            Severity.ERROR,
            f"{pair.one} {versions[pair.one]} with {pair.other}",
            versions[pair.other],
            pair.why,
            pair.remedy,
        )
        for pair in KNOWN_BAD
        if _is(versions, pair.one, pair.versions) and _is(versions, pair.other, pair.other_versions)
    ]


def _is(versions: Mapping[str, str], name: str, wanted: str) -> bool:
    return name in versions and SpecifierSet(wanted, prereleases=True).contains(versions[name])


def check_kernels(subject: Subject) -> list[Finding]:
    """Return what a GPU training asks of Transformer Engine that this environment has not.

    Says nothing where Transformer Engine is missing too: then the training's environment is another one.
    """
    key = f"{TRANSFORMER}.attention_backend"
    if (
        subject.get(key) != "flash"
        or is_installed("transformer_engine") is False
        or any(map(is_installed, FLASH_ATTENTION))
    ):
        return []
    return [
        subject.note(
            "S15",
            key,
            "flash-attn is not installed here. Where the training's machine has none either, it uses fused (cuDNN's, "
            "through Transformer Engine).",
        )
    ]
