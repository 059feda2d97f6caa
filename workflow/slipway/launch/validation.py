"""`validation.json` of a segment: how verl validated in it, which a config that is edited later no longer tells."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipway.manifest import hash_file, write_json

RECORD = "validation.json"


def record_validation(resolved: Mapping[str, Any], segment_folder: Path) -> None:
    """Write questions (BLAKE3 of their file) and sampling of a resolved verl config; nothing where none is done.

    `most_questions` is -1 for all of them; `max_response_length` is in tokens.
    """
    if resolved["trainer"].get("test_freq", -1) <= 0:
        return
    data, rollout = resolved["data"], resolved["actor_rollout_ref"]["rollout"]
    sampling = rollout["val_kwargs"]
    write_json(
        segment_folder / RECORD,
        {
            "questions": hash_file(Path(data["val_files"])),
            "most_questions": data.get("val_max_samples", -1),
            "temperature": sampling["temperature"],
            "top_p": sampling["top_p"],
            "top_k": sampling["top_k"],
            "max_response_length": data["max_response_length"],
        },
    )
