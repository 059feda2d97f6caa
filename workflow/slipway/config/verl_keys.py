"""Which keys verl's config has, and what was meant by one that it has not."""

import difflib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from slipway.config.verl_fields import free_fields

_RENAMED = Path(__file__).with_name("renamed_keys.yaml")


class Renamed(NamedTuple):
    """A name that others use: what stands for it in verl, a key or advice, and what there is to know."""

    key: str
    instead: str
    why: str = ""


def meant(key: str, known: Iterable[str]) -> str | None:
    """Return what to do instead of setting `key`, which is not among the `known`; None when the key is fine.

    `known` are the dotted keys of verl's composed config, sections left out.
    """
    free = free_fields(key)
    if free is not None:
        name = key.rpartition(".")[2]
        return None if not free or name in free else (_renamed(key) or _nearest_field(key, free))
    if key in known or any(entry.startswith(f"{key}.") for entry in known):
        return None
    return _renamed(key) or _nearest(key, known)


def renamed(name: str) -> Renamed | None:
    """Return what is known of a name that others use, an option without its dashes too."""
    plain = name.lstrip("-")
    for entry in renamed_keys():
        if plain == entry.key or plain.endswith(f".{entry.key}") or plain == entry.key.replace("-", "_"):
            return entry
    return None


@cache
def renamed_keys() -> tuple[Renamed, ...]:
    """Return every such name."""
    return tuple(Renamed(**entry) for entry in yaml.safe_load(_RENAMED.read_text(encoding="utf-8")))


def _renamed(key: str) -> str:
    entry = renamed(key)
    if entry is None or entry.instead == key:
        return ""
    why = f" ({entry.why})" if entry.why else ""
    if entry.instead.startswith("nothing"):
        return f"Leave it out{entry.instead.removeprefix('nothing')}{why}."
    return f"Use {entry.instead}{why}."


def _nearest_field(key: str, fields: Iterable[str]) -> str:
    parent, _, name = key.rpartition(".")
    close = difflib.get_close_matches(name, sorted(fields), n=2, cutoff=0.6)
    return f"Did you mean {' or '.join(f'{parent}.{field}' for field in close)}?" if close else "Leave it out."


def _nearest(key: str, known: Iterable[str]) -> str:
    """Name the known key that was probably meant: a neighbour of like name, else the same name elsewhere."""
    parent, _, last = key.rpartition(".")
    neighbours = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == parent]
    close = [f"{parent}.{name}" for name in difflib.get_close_matches(last, neighbours, n=2, cutoff=0.7)]
    same_name = sorted(
        (name for name in known if name.rpartition(".")[2] == last),
        key=lambda name: -_shared_start(name, key),
    )
    found = close or same_name[:2]
    if found:
        return f"Did you mean {' or '.join(found)}?"
    return "`python -m verl.trainer.main_ppo --cfg job model_engine=megatron` prints every key."


def _shared_start(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
