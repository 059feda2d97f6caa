"""Whether verl's agent loop can tell the turns of a chat: by its own code, before a training."""

import json

import pytest
from tiny_model import make_model

from slipway.preflight.composition import check_turns_with_verl

pytestmark = pytest.mark.verl


def test_a_tokenizer_without_its_familys_end_of_turn_is_refused(tmp_path):
    """verl goes by `model_type` alone: a model of an architecture may well come with the tokenizer of another."""
    folder = make_model(tmp_path)
    assert check_turns_with_verl("tiny", folder) == []
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "deepseek_v3"}))
    (found,) = check_turns_with_verl("tiny", folder)
    assert (found.rule, found.severity, found.key) == ("S25", "error", "models.tiny")
    assert "'deepseek_v3'" in found.why and "<｜end▁of▁sentence｜>" in found.why
