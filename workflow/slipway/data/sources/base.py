"""What a source offers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Block:
    """A part of a source that one worker reads at a time.

    `start` and `stop` are bytes of a text file, or rows; `first` is the line or row that the block begins with.
    """

    file: str
    start: int
    stop: int
    first: int


class Source(Protocol):
    """Records in a fixed order. Workers get a copy, so it holds names, not content."""

    @property
    def unit(self) -> str:
        """What a record's place counts: line, row or problem."""

    @property
    def ability(self) -> str | None:
        """What verl's `ability` column says; None: the task."""

    def blocks(self) -> list[Block]:
        """Return the parts of the source, in order; the same whatever reads them."""

    def read(self, block: Block) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield place and record; raises `SlipwayError` that names file and place for one that is damaged."""

    def identity(self) -> dict[str, Any]:
        """Return JSON that changes when the records do."""
