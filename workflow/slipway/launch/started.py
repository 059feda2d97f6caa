"""`train/started.json`: what a training began with, and so what its checkpoints depend on."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipway.errors import SlipwayError
from slipway.manifest import Manifest, fingerprint, write_json

STARTED = "started.json"


@dataclass(frozen=True)
class Started:
    """The identity of the resolved config (`config.identity`), and digests of data and model (`model_digest`)."""

    identity: Mapping[str, Any]
    inputs: Mapping[str, str]


def model_digest(converted: Manifest) -> str:
    """Return a digest of what a training depends on of a converted model: weights, config, padding of the vocabulary.

    Not of the files that hold it: a newer converter writes others, and trainings that are under way go on.
    """
    return fingerprint(
        {
            "weights": converted.facts["weights"],
            "config": converted.inputs["source"]["files"]["config.json"],
            "vocab_multiple": converted.inputs["vocab_multiple"],
        }
    )


def write_started(train_folder: Path, started: Started) -> None:
    """Record the start of a training."""
    write_json(train_folder / STARTED, asdict(started))


def read_started(train_folder: Path) -> Started | None:
    """Return the record, or None when there is none; raises `SlipwayError` when it is damaged."""
    record = train_folder / STARTED
    if not record.is_file():
        return None
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
        return Started(dict(content["identity"]), dict(content["inputs"]))
    except (ValueError, KeyError, TypeError) as error:
        raise SlipwayError(
            f"{record}: damaged ({error!r}), so what the run's checkpoints depend on is not known; bring the file "
            f"back, or delete {train_folder.parent} to start over"
        ) from None
