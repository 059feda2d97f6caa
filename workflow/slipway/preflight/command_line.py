"""Judge somebody's own launch of verl: the text of a command or script becomes a resolved config and findings.

What Hydra would do with each override is done by Hydra's own parser; nothing of the script is run.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway.config.verl import flatten, merge
from slipway.config.verl_defaults import verl_defaults
from slipway.config.verl_keys import meant, renamed
from slipway.errors import SlipwayError
from slipway.models.architecture import Architecture
from slipway.models.known import find_dimensions, known_models
from slipway.preflight.findings import Finding, Severity
from slipway.preflight.planning.hardware import Gpu
from slipway.preflight.rules import check
from slipway.preflight.subject import Subject

_ENTRY = re.compile(r"(^|\.)main_ppo(\.py)?$")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}]*))?\}?")
# Options of Hydra's own, with the number of words that follow each.
_HYDRA = {"--config-path": 1, "--config-name": 1, "--config-dir": 1, "--cfg": 1, "--resolve": 0, "-cn": 1, "-cp": 1}
_MEGATRON = "model_engine=megatron"
_MODEL = "actor_rollout_ref.model.path"


@dataclass
class _Command:
    """The overrides of a command line, and what was wrong with its words."""

    overrides: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def judge(text: str, model: Architecture | None = None, gpu: Gpu | None = None) -> list[Finding]:
    """Return the findings about a launch of verl's `main_ppo`; raises `SlipwayError` when the text holds none.

    Without `model`, the dimensions are those of the launch's own model path where they are known; without `gpu`,
    nothing is said of memory.
    """
    command = _read(text)
    settings: dict[str, Any] = {}
    findings = list(command.findings)
    if _MEGATRON not in command.overrides:
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
    for word in command.overrides:
        if word != _MEGATRON:
            findings += _lay(word, settings)
    resolved = flatten(merge({_MODEL: "?"} | settings))
    if model is None and (found := _known_model(str(resolved[_MODEL]))) is not None:
        name, model = found
        findings.append(
            Finding("S13", Severity.NOTE, _MODEL, resolved[_MODEL], f"its dimensions are taken from {name}.")
        )
    return findings + check(Subject(resolved, model, gpu_memory=gpu.memory if gpu else None))


def _known_model(path: str) -> tuple[str, Architecture] | None:
    """Return the dimensions of a model path: its own config.json, or those that ship under its name."""
    if (Path(path).expanduser() / "config.json").is_file():
        return path, find_dimensions(path)
    last = path.rstrip("/").rpartition("/")[2]
    names = [name for name in known_models() if path == name or last == name.rpartition("/")[2]]
    return (names[0], find_dimensions(names[0])) if names else None


def _read(text: str) -> _Command:
    """Split a command line, or the script around it, into overrides."""
    variables: dict[str, str] = {}
    command = _Command()
    found = False
    for line in _logical_lines(text):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise SlipwayError(f"--verl-args: not a shell command ({error}): {line[:80]}") from None
        entry = next((at for at, word in enumerate(words) if _ENTRY.search(word)), None)
        if entry is None:
            variables |= dict(word.split("=", 1) for word in words if _ASSIGNMENT.match(word))
            if not found and words and all("=" in word or word.startswith(("+", "-")) for word in words):
                # the arguments alone
                if not any("." in word.partition("=")[0] or word == _MEGATRON for word in words):
                    continue
                entry = -1
            else:
                continue
        found = True
        _take(words[entry + 1 :], variables, command)
    if not found:
        raise SlipwayError("--verl-args: no `python -m verl.trainer.main_ppo ...` and no overrides like a.b=c in it")
    return command


def _logical_lines(text: str) -> Iterator[str]:
    yield from re.sub(r"\\[ \t]*\r?\n", " ", text).splitlines()


def _take(words: list[str], variables: dict[str, str], command: _Command) -> None:
    options = iter(words)
    for word in options:
        if word in ("|", "&", ";", "&&", "||", ">", "2>&1", "|&") or word.startswith((">", "2>")):
            return
        if word in _HYDRA:
            for _ in range(_HYDRA[word]):
                next(options, None)
        elif word.startswith("-"):
            command.findings.append(_wrong_option(word))
        elif word not in ("$@", "${@}"):
            command.overrides += _substitute(word, variables, command)


def _wrong_option(word: str) -> Finding:
    name, _, value = word.partition("=")
    if "." in name:
        remedy = f"Write {word.lstrip('-')}."
    elif (entry := renamed(name)) is not None:
        remedy = (
            f"Use {entry.instead}." if not entry.instead.startswith("nothing") else f"Leave it out{entry.instead[7:]}."
        )
    else:
        remedy = "Overrides have no dashes: key=value."
    return Finding("S12", Severity.ERROR, name, value or None, "main_ppo has no such option, and ends at once.", remedy)


def _substitute(word: str, variables: dict[str, str], command: _Command) -> list[str]:
    """Put in what the script itself assigns; an override that depends on anything else is left out, and said so."""

    def value_of(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        return variables.get(name, default if default is not None else match.group(0))

    for _ in range(5):  # a variable's value may name others
        word = _VARIABLE.sub(value_of, word)
    if "$" in word:
        key, _, value = word.partition("=")
        command.findings.append(
            Finding("S13", Severity.NOTE, key, value, "comes from outside of the text, and is not judged.", "")
        )
        return []
    return [word]


def _lay(word: str, settings: dict[str, Any]) -> list[Finding]:
    """Add one override to the settings, or return why Hydra would not, or would without effect."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
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
    forced, added = override.is_force_add(), override.is_add()
    known = key in verl_defaults() or any(entry.startswith(f"{key}.") for entry in verl_defaults())
    instead = meant(key, verl_defaults())
    if instead is not None:
        why = "verl has no such key: behind a + it is never read." if added or forced else "verl has no such key."
        return [Finding("S12", Severity.ERROR, key, value, why, instead)]
    if added and known:
        why = "is there already, and + only adds: Hydra ends the launch."
        return [Finding("S12", Severity.ERROR, key, value, why, f"Write {key}=..., without the +.")]
    if not added and not forced and not known:
        why = "is not there yet: Hydra ends the launch."
        return [Finding("S12", Severity.ERROR, key, value, why, f"Write +{key}=...")]
    settings[key] = value
    return []
