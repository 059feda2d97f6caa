"""What a training's log says of its end, for error messages."""

import re
from pathlib import Path

# How far back the cause of an end may be: Ray repeats a worker's traceback several times.
_TAIL = 500
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Ray puts it before a worker's line: (WorkerDict pid=12, ip=10.0.0.2)
_WORKER = re.compile(r"^\(\S+ pid=\d+[^)]*\) ")
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt): \S")
# It only carries another one, which follows with its traceback.
_CARRIER = "RayTaskError("


def last_lines(path: Path, count: int = 25) -> str:
    """Return the last lines of a log."""
    if not path.is_file():
        return f"({path} does not exist)"
    return "\n".join(_lines(path)[-count:])


def cause(path: Path) -> str | None:
    """Return the line that names the error which ended a training, or None when its log names none."""
    if not path.is_file():
        return None
    plain = (_WORKER.sub("", _COLOUR.sub("", line)).strip() for line in _lines(path)[-_TAIL:])
    errors = [line for line in plain if _ERROR.match(line) and _CARRIER not in line]
    return errors[-1] if errors else None


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()
