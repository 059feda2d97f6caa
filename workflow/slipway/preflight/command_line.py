"""Judge somebody's own launch of verl: the overrides in a command or script become a resolved config and findings.

What Hydra would do with each override is done by Hydra's own parser.
"""

from pathlib import Path
from typing import Any

from slipway.config.verl import flatten, merge
from slipway.config.verl_defaults import verl_defaults
from slipway.config.verl_keys import meant
from slipway.errors import SlipwayError
from slipway.models.architecture import Architecture, read_architecture
from slipway.models.known import find_dimensions, find_folder, known_models
from slipway.models.maps import MAPS
from slipway.preflight.findings import Finding, Severity, errors
from slipway.preflight.launch_text import read_launch
from slipway.preflight.planning.hardware import Gpu
from slipway.preflight.rules import check
from slipway.preflight.subject import Subject

_MEGATRON = "model_engine=megatron"
_MODEL = "actor_rollout_ref.model.path"


def judge(text: str, model: str | Architecture | None = None, gpu: Gpu | None = None) -> list[Finding]:
    """Return the findings about a launch of verl's `main_ppo`; raises `SlipwayError` when the text holds none.

    `model` is a folder with a `config.json`, a name that ships, or dimensions; without it they are those of the
    launch's own model path where they are known. Without `gpu`, nothing is said of memory.
    """
    launch = read_launch(text)
    settings: dict[str, Any] = {}
    findings = list(launch.findings)
    # verl's own ppo_megatron_trainer.yaml selects the engine, too
    if _MEGATRON not in launch.overrides and "megatron" not in (launch.config_name or ""):
        findings.append(
            Finding(
                "S11",
                Severity.ERROR,
                "model_engine",
                None,
                "without it verl trains by FSDP, whose config is another one: only launches of Megatron are judged.",
                f"Add {_MEGATRON}.",
            )
        )
    for word in launch.overrides:
        if word != _MEGATRON:
            findings += _lay(word, settings)
    resolved = flatten(merge({_MODEL: "?"} | settings))
    if model is None and (found := _known_model(str(resolved[_MODEL]))) is not None:
        model = found
        findings.append(
            Finding("S13", Severity.NOTE, _MODEL, resolved[_MODEL], f"its dimensions are taken from {model}.")
        )
    if isinstance(model, str):
        dimensions = find_dimensions(model)
        findings += _left_out(model, dimensions)
        model = dimensions
    for key in launch.unknown:
        resolved.pop(key, None)
    # of a launch that was not understood there is no forecast
    memory = gpu.memory if gpu and not errors(findings) and not launch.unknown else None
    judged = check(Subject(resolved, model, gpu_memory=memory))
    return findings + [finding for finding in judged if finding.key not in launch.unknown]


def _known_model(path: str) -> str | None:
    """Return where the dimensions of a model path are: its own config.json, or what ships under its name."""
    if (Path(path).expanduser() / "config.json").is_file():
        return path
    last = path.rstrip("/").rpartition("/")[2]
    return next((name for name in known_models() if path == name or last == name.rpartition("/")[2]), None)


def _left_out(model: str, dimensions: Architecture) -> list[Finding]:
    """Return what verl's Megatron model would compute otherwise than the checkpoint was made for."""
    if dimensions.name not in MAPS:
        why = f"architecture {dimensions.name} is judged by its dimensions alone: Slipway does not convert it."
        return [Finding("S22", Severity.WARNING, _MODEL, model, why, "")]
    try:
        if (folder := find_folder(model)) is not None:
            read_architecture(folder)
    except SlipwayError as error:
        return [Finding("S22", Severity.ERROR, _MODEL, model, f"{error}.", "")]
    if dimensions.fault:
        why = f"{dimensions.fault} Slipway registers a bridge that is right."
        remedy = "Export VERL_USE_EXTERNAL_MODULES=slipway.launch.verl_changes.registration."
        return [Finding("S19", Severity.WARNING, _MODEL, model, why, remedy)]
    return []


def _lay(word: str, settings: dict[str, Any]) -> list[Finding]:
    """Add one override to the settings, or return why Hydra would not, or would without effect."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Sweep
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException as error:
        why = f"Hydra cannot read it: {str(error).splitlines()[0]}."
        return [
            Finding("S12", Severity.ERROR, word.partition("=")[0], word.partition("=")[2] or None, why, "Quote it.")
        ]
    key = override.key_or_group
    value = override.value()
    if override.is_delete():
        return [Finding("S13", Severity.NOTE, key, None, "removes a key, which is not judged.", "")]
    if isinstance(value, Sweep):
        return [
            Finding("S12", Severity.ERROR, key, word.partition("=")[2], "is a sweep; main_ppo trains one.", "Quote it.")
        ]
    if override.package is not None or key.startswith("hydra."):
        return [Finding("S13", Severity.NOTE, key, value, "is for Hydra itself, and is not judged.", "")]
    forced, added = override.is_force_add(), override.is_add()
    known = key in verl_defaults() or any(entry.startswith(f"{key}.") for entry in verl_defaults())
    instead = meant(key, verl_defaults())
    if instead is not None:
        why = "verl has no such key: behind a + it is never read." if added or forced else "verl has no such key."
        return [Finding("S12", Severity.ERROR, key, value, why, instead)]
    default = verl_defaults().get(key)
    if added and default is not None and not isinstance(default, list):
        settings[key] = value  # what was meant
        why = "is there already, and + only adds: Hydra ends the launch."
        return [Finding("S12", Severity.ERROR, key, value, why, f"Write {key}=..., without the +.")]
    if not added and not forced and not known:
        settings[key] = value
        why = "is not there yet: Hydra ends the launch."
        return [Finding("S12", Severity.ERROR, key, value, why, f"Write +{key}=...")]
    if isinstance(value, dict):  # Hydra lays a section over the one that is there
        settings |= {f"{key}.{name}": entry for name, entry in flatten(value).items()}
    else:
        settings[key] = value
    return []
