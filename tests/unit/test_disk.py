"""Preflight counts on the disk what a run will leave there."""

import json
import shutil
from collections import namedtuple

import pytest

from slipway.config.schema import Run
from slipway.models.architecture import architecture_from_config
from slipway.models.sizes import model_parameters
from slipway.preflight import disk
from slipway.preflight.findings import Severity

MODEL = architecture_from_config(
    json.loads(
        '{"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,'
        ' "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 64}'
    ),
    "test",
)
PARAMETERS = model_parameters(MODEL).total


def findings(monkeypatch: pytest.MonkeyPatch, tmp_path, free: float, **settings: object) -> list:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, free))
    run = Run(model="m", data="d", evaluation=["e"], steps=100, save_every=10, keep_checkpoints=1, **settings)
    return disk.check_disk("demo", run, MODEL, tmp_path)


def test_evaluated_steps_take_their_weights_twice(monkeypatch, tmp_path):
    of_two = 2 * disk.checkpoint_bytes_of(MODEL)
    assert findings(monkeypatch, tmp_path, of_two) == []
    more = 9 * 2 * 2 * PARAMETERS  # nine steps, two copies, two bytes a parameter
    evaluated = {"checkpoints": {"evaluate_every": 10}}
    assert findings(monkeypatch, tmp_path, of_two + more, **evaluated) == []
    (finding,) = findings(monkeypatch, tmp_path, of_two + more - 1, **evaluated)
    assert (finding.rule, finding.severity) == ("S18", Severity.WARNING)
    assert "exported models of 9 evaluated steps" in finding.why
    assert "checkpoints.evaluate_every" in finding.remedy
