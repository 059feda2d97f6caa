"""The last error lines of a run's logs."""

import re
from dataclasses import dataclass
from pathlib import Path

PATTERNS = ("**/*.log", "**/*.out", "**/*.err")
FILES, LINES, TAIL_BYTES = 6, 12, 200_000
TROUBLE = re.compile(r"error|exception|traceback|killed|out of memory|timed? ?out|refused", re.IGNORECASE)
# What looks like trouble in every healthy log of verl: warnings that name an exception, and its printed config.
CALM = re.compile(r"Warning: |^(\(\w+ pid=\d+\) )?\s*'[\w.]+': ")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class LogExcerpt:
    """Lines of one log: those that tell of trouble, or else its last ones."""

    path: str
    lines: list[str]


def last_errors(folder: Path) -> list[LogExcerpt]:
    """Return excerpts of the newest logs below `folder`, those with trouble first."""
    paths = {path for pattern in PATTERNS for path in folder.glob(pattern) if path.is_file()}
    newest = sorted(paths, key=lambda path: (-path.stat().st_mtime, path))
    excerpts = [(path, _tail(path)) for path in newest]
    troubled = [(path, found) for path, lines in excerpts if (found := list(filter(_is_trouble, lines)))]
    chosen = troubled or excerpts
    return [LogExcerpt(str(path.relative_to(folder)), lines[-LINES:]) for path, lines in chosen[:FILES]]


def _is_trouble(line: str) -> bool:
    return TROUBLE.search(line) is not None and CALM.search(line) is None


def _tail(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        text = COLOUR.sub("", file.read().decode("utf-8", errors="replace"))
    return [line.rstrip()[:400] for line in text.splitlines() if line.strip()]
