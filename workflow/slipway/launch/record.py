"""`train/job.json`: the launcher's memory of its job, written before and after each step that a crash may follow."""

import json
from pathlib import Path
from typing import Any

from slipway.manifest import write_json

RECORD = "job.json"


def write_record(train_folder: Path, **values: Any) -> None:
    """Write the record anew."""
    write_json(train_folder / RECORD, values)


def read_record(train_folder: Path) -> dict[str, Any]:
    """Return the record; empty when no job was submitted yet."""
    try:
        record: dict[str, Any] = json.loads((train_folder / RECORD).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return record
