"""verl's composed config with gaps where runs differ, so that Hydra and OmegaConf work once for a whole sweep.

Composing and resolving takes about a second, writing a thousand keys as YAML a twentieth; filling gaps in text that is
there already takes neither. It is exact because verl's interpolations only copy values: a mark put where a setting goes
comes out wherever its value would.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import yaml

# Plain in YAML, and no value that anybody means.
_MARK = "slipway.gap.{:04}"
_MARKS = re.compile(r"slipway\.gap\.\d{4}")

Path = tuple[str, ...]


@dataclass(frozen=True)
class Template:
    """A resolved config without the values of some settings; equal values give equal text."""

    texts: tuple[str, ...]
    """YAML before, between and after the gaps."""
    gaps: tuple[tuple[str, Path], ...]
    """In the order of the text: the setting whose value belongs there, and the keys that lead there."""
    tree: str
    """JSON of the config, with null in the gaps."""

    def text(self, values: Mapping[str, Any]) -> str:
        """Return the config as YAML, with the values of the settings in their gaps."""
        parts = [self.texts[0]]
        for (setting, path), text in zip(self.gaps, self.texts[1:], strict=True):
            parts += [_scalar(values[setting], path), text]
        return "".join(parts)

    def plain(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config as plain values, with those of the settings in their gaps."""
        tree: dict[str, Any] = json.loads(self.tree)
        for setting, path in self.gaps:
            section = tree
            for key in path[:-1]:
                section = section[key]
            section[path[-1]] = values[setting]
        return tree

    def flat(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config as dotted keys with plain values; a copy of what all runs of the kind share."""
        return self._flat | {".".join(path): values[setting] for setting, path in self.gaps}

    @cached_property
    def _flat(self) -> dict[str, Any]:
        return flatten(json.loads(self.tree))

    def to_json(self) -> str:
        """Return the template as text for `from_json`."""
        return json.dumps({"texts": self.texts, "gaps": self.gaps, "tree": self.tree})

    @classmethod
    def from_json(cls, text: str) -> "Template":
        """Read what `to_json` returned."""
        read = json.loads(text)
        gaps = tuple((setting, tuple(path)) for setting, path in read["gaps"])
        return cls(tuple(read["texts"]), gaps, read["tree"])


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what differs between runs of one template, and what belongs to the template.

    Gaps are for single values. An interpolation of the user's own may do more than copy: then there are no gaps.
    """
    if "${" in json.dumps(settings, default=str):
        return {}, dict(settings)
    free = {key: value for key, value in settings.items() if _is_single(value)}
    return free, {key: value for key, value in settings.items() if key not in free}


def make_template(settings: Mapping[str, Any], resolve: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Template:
    """Return the template of all runs with these settings but for their single values.

    `resolve` returns verl's whole config with settings laid over it.
    """
    free, _ = split_settings(settings)
    marks = {_MARK.format(number): key for number, key in enumerate(free)}
    marked = resolve(dict(settings) | {key: mark for mark, key in marks.items()})
    text = dump(marked)
    gaps = []
    for path, value in _leaves(marked):
        if isinstance(value, str) and value in marks:
            gaps.append((marks[value], path))
            _set(marked, path, None)
    texts = _MARKS.split(text)
    assert len(texts) == len(gaps) + 1, "verl makes more of a setting than copies: it has to belong to the template"
    return Template(tuple(texts), tuple(gaps), json.dumps(marked))


def dump(config: Mapping[str, Any]) -> str:
    """Return a config as YAML; equal configs give equal text."""
    return str(yaml.dump(dict(config), Dumper=yaml.CSafeDumper, sort_keys=True, width=120))


def flatten(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys; keys of `nested` may themselves be dotted."""
    return dict(dotted_leaves(nested))


def dotted_leaves(nested: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and their values, one that is given in two ways twice."""
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            yield from dotted_leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_single(value: Any) -> bool:
    # "???" is OmegaConf's mark of a missing value, which is not copied
    return value is None or type(value) in (bool, int, float) or (type(value) is str and value != "???")


def _leaves(tree: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the values of nested mappings in the order in which `dump` writes them."""
    for key in sorted(tree, key=str):
        if isinstance(tree[key], Mapping):
            yield from _leaves(tree[key], (*path, key))
        else:
            yield (*path, key), tree[key]


def _set(tree: dict[str, Any], path: Path, value: Any) -> None:
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


def _scalar(value: Any, path: Path) -> str:
    """Return a single value as `dump` writes it after the last key of `path`."""
    if isinstance(value, float):
        # not remembered: 0.0 and -0.0 are equal, and written differently
        return str(yaml.representer.SafeRepresenter().represent_float(value).value)
    # only text with white space is broken into lines, and where depends on where it begins
    depends = isinstance(value, str) and any(map(str.isspace, value))
    return _remembered(value, path if depends else ("x",))


@lru_cache(maxsize=4096, typed=True)  # typed: True is not 1
def _remembered(value: Any, path: Path) -> str:
    before = _nested(path, 0).removesuffix("0\n")
    return _nested(path, value).removeprefix(before).removesuffix("\n")


def _nested(path: Path, value: Any) -> str:
    for key in reversed(path):
        value = {key: value}
    return dump(value)
