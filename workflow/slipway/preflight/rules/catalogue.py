"""Every rule in a line, for the documentation: see catalogue.yaml."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml


class Rule(NamedTuple):
    """A rule; `fails` is the stage at which verl or Megatron-core would fail, or `silently` train something else."""

    about: str
    fails: str
    source: str


@cache
def catalogue() -> dict[str, Rule]:
    """Return the rules by name."""
    content = yaml.safe_load(Path(__file__).with_name("catalogue.yaml").read_text(encoding="utf-8"))
    return {name: Rule(**entry) for name, entry in content.items()}


def as_markdown() -> str:
    """Return the table of docs/preflight.md."""
    head = ["| rule | is about | fails otherwise | source |", "|---|---|---|---|"]
    rows = [f"| {name} | {rule.about} | {rule.fails} | {rule.source} |" for name, rule in catalogue().items()]
    return "\n".join([*head, *rows])
