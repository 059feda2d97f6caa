"""What a task makes of a source's record, and how it says that it cannot."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipway.config.schema import LABELS
from slipway.errors import SlipwayError


class UnusableError(Exception):
    """A record that is well formed but makes no problem: it is left out, with this reason."""


@dataclass(frozen=True)
class Problem:
    """A question and its gold answer; `metadata` is what the scorer needs besides, as JSON.

    `demonstration` is an answer worked out, to be shown as an example; None: the gold answer alone.
    """

    question: str
    answer: str
    metadata: dict[str, Any]
    demonstration: str | None = None


@dataclass(frozen=True)
class Record:
    """A row of a source: its values, the user's mapping of columns, and its place for messages.

    `file` is what the source calls the file, `place` the line or row in it, `unit` what `place` counts.
    """

    values: Mapping[str, Any]
    columns: Mapping[str, str]
    file: str
    place: int
    unit: str

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.file} {self.unit} {self.place}"

    def has(self, field: str) -> bool:
        """Tell whether the record has the field's column, with a value."""
        return self._find(field)[1] is not None

    def get(self, field: str) -> Any:
        """Return a field's value; raises `SlipwayError` when the record has no such column."""
        found, value = self._find(field)
        if not found:
            column = self.columns.get(field, field)
            there = ", ".join(map(str, self.values)) or "none"
            raise SlipwayError(
                f"{self.where}: has no column {column!r}; it has {there}. Say which it is in the source's `columns`: "
                f"{{{field}: <column>}}"
            )
        return value

    def text(self, field: str) -> str:
        """Return a field that must be text; a number becomes text, null an empty one."""
        value = self.get(field)
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        column, kind = self.columns.get(field, field), type(value).__name__
        raise SlipwayError(f"{self.where}: {column} is {kind} ({str(value)[:80]}), expected text")

    def labels(self) -> dict[str, str]:
        """Return what the columns that `columns` names for difficulty and category hold, as text, where not empty."""
        found = {field: self.text(field).strip() for field in LABELS if field in self.columns}
        return {field: text for field, text in found.items() if text}

    def _find(self, field: str) -> tuple[bool, Any]:
        column = self.columns.get(field, field)
        if column in self.values:
            return True, self.values[column]
        value: Any = self.values
        for part in column.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return False, None
            value = value[part]
        return True, value
