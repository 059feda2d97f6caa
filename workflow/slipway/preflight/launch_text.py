"""The overrides of a launch of verl's `main_ppo`, from the text of a command or of the script around it.

Nothing is run: assignments, arrays and defaults (`${X:-4}`) of the script itself are followed, the rest is left out,
and said so.
"""

import re
import shlex
from dataclasses import dataclass, field

from slipway.config.verl_keys import renamed
from slipway.errors import SlipwayError
from slipway.preflight.findings import Finding, Severity

_ENTRY = re.compile(r"(^|\.)main_ppo(\.py)?$")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(rf"\$\{{?({_NAME}|[0-9]+)(?::?-([^}}]*))?\}}?")
_ARRAY = re.compile(rf"""^[ \t]*({_NAME})(\+?)=\(((?:[^()"']|"[^"]*"|'[^']*')*)\)""", re.MULTILINE)
_ARRAY_USE = re.compile(rf"\$\{{({_NAME})\[[@*]\]\}}$")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_END = ("|", "&", ";", "&&", "||", "|&")
# Options of Hydra's own, with the number of words that follow each when it has no `=`.
_HYDRA = {
    "--config-path": 1, "--config-name": 1, "--config-dir": 1, "--cfg": 1, "--package": 1, "--info": 0, "--resolve": 0,
    "--multirun": 0, "--run": 0, "--help": 0, "-cn": 1, "-cp": 1, "-cd": 1, "-c": 1, "-p": 1, "-m": 0, "-r": 0, "-h": 0,
}  # fmt: skip


@dataclass
class Launch:
    """What a launch asks for: overrides in order, the config it names, and what was wrong with its words."""

    overrides: list[str] = field(default_factory=list)
    config_name: str | None = None
    findings: list[Finding] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    """Keys whose value is not in the text."""


def read_launch(text: str) -> Launch:
    """Read a command line, the script around it, or the overrides alone; raises `SlipwayError` when there is none."""
    launch, variables = Launch(), _Variables()
    text = variables.take_arrays(_COMMENT.sub("", text))
    found = False
    for line in re.sub(r"\\[ \t]*\r?\n", " ", text).splitlines():
        words = _words(line)
        # a launch inside of another command, as in: bash -c "python -m verl.trainer.main_ppo ..."
        inner = next((word for word in words if " " in word and re.search(r"\bmain_ppo\b", word)), None)
        if inner is not None:
            words = _words(inner)
        entry = next((at for at, word in enumerate(words) if variables.is_entry(word)), None)
        if entry is None:
            variables.assign(words)
            if found or not _are_overrides(words):
                continue
            entry = -1
        found = True
        _take(words[entry + 1 :], variables, launch)
    if not found:
        raise SlipwayError("--verl-args: no `python -m verl.trainer.main_ppo ...` and no overrides like a.b=c in it")
    return launch


class _Variables:
    """What the script itself assigns."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._arrays: dict[str, list[str]] = {}

    def take_arrays(self, text: str) -> str:
        """Remember the arrays of a script, and return it without them."""

        def take(match: re.Match[str]) -> str:
            name, more, content = match.groups()
            words = [word for line in content.replace("\\\n", " ").splitlines() for word in _words(line)]
            self._arrays[name] = [*self._arrays.get(name, []), *words] if more else words
            return ""

        return _ARRAY.sub(take, text)

    def assign(self, words: list[str]) -> None:
        """Follow the assignments that a line begins with."""
        for word in words:
            if word in ("export", "local", "readonly", "declare"):
                continue
            if not _ASSIGNMENT.match(word):
                return
            name, _, value = word.partition("=")
            self._values[name] = self.expand(value)

    def is_entry(self, word: str) -> bool:
        """Whether a word names verl's main_ppo."""
        return not _ASSIGNMENT.match(word) and _ENTRY.search(self.expand(word)) is not None

    def expand(self, word: str) -> str:
        """Put in what is known; what is not stays as it is."""

        def value_of(match: re.Match[str]) -> str:
            name, default = match.group(1), match.group(2)
            return self._values.get(name, match.group(0) if default is None else self.expand(default))

        return _VARIABLE.sub(value_of, word)

    def words_of(self, word: str) -> list[str] | None:
        """Return the words of an array, or of a variable that holds several; None for any other word."""
        if used := _ARRAY_USE.match(word):
            return self._arrays.get(used.group(1))
        single = _VARIABLE.fullmatch(word)
        value = self._values.get(single.group(1), "") if single else ""
        return _words(value) if " " in value else None


def _words(line: str) -> list[str]:
    """Split a line as a shell does; a line that ends within quotes has nothing to say here, unless it is the launch."""
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        if re.search(r"\bmain_ppo\b", line):
            raise SlipwayError(f"--verl-args: not a shell command ({error}): {line.strip()[:80]}") from None
        return []


def _are_overrides(words: list[str]) -> bool:
    return (
        bool(words)
        and all("=" in word or word.startswith(("+", "-", "~")) for word in words)
        and any("." in word.partition("=")[0] or word.startswith("model_engine=") for word in words)
    )


def _take(words: list[str], variables: _Variables, launch: Launch) -> None:
    options = iter(words)
    for word in options:
        if word in _END or re.match(r"[0-9&]?>", word):
            return
        ends, word = word.endswith(";"), word.rstrip(";")
        several = variables.words_of(word)
        option, has_value, value = word.partition("=")
        if several is not None:
            _take(several, variables, launch)
        elif option in _HYDRA:
            following = [] if has_value else [next(options, "") for _ in range(_HYDRA[option])]
            if option in ("--config-name", "-cn"):
                launch.config_name = value or "".join(following)
        elif word.startswith("-"):
            launch.findings.append(_wrong_option(word))
        elif word and word not in ("$@", "${@}", "$*"):
            _override(variables.expand(word), launch)
        if ends:
            return


def _override(word: str, launch: Launch) -> None:
    """Take an override whose value is in the text; name one that depends on anything else."""
    if "$" not in word:
        launch.overrides.append(word)
        return
    key, _, value = word.partition("=")
    launch.unknown.add(key.lstrip("+~"))
    why = "comes from outside of the text, and is not judged."
    launch.findings.append(Finding("S13", Severity.NOTE, key, value, why, ""))


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
