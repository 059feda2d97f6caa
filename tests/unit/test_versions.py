"""Packages that fail together are named before a worker dies of them."""

import pytest

from slipway.preflight import versions
from slipway.preflight.subject import TRANSFORMER, Subject


def test_what_is_installed_here_runs_together():
    assert {"verl", "mbridge", "megatron-core", "transformers", "tokenizers"} <= versions.installed().keys()
    assert versions.check_pairs(versions.installed()) == []


@pytest.mark.parametrize(
    ("have", "named"),
    [
        ({"mbridge": "0.15.1", "megatron-core": "0.19.0"}, "mbridge 0.15.1 with megatron-core"),
        ({"mbridge": "0.15.1", "megatron-core": "0.18.0rc1"}, "mbridge 0.15.1 with megatron-core"),
        ({"verl": "0.9.1", "transformers": "5.17.0"}, "verl 0.9.1 with transformers"),
        ({"transformers": "5.10.4", "tokenizers": "0.23.2"}, "transformers 5.10.4 with tokenizers"),
        ({"vllm": "0.22.1", "xgrammar": "0.2.1"}, "vllm 0.22.1 with xgrammar"),
    ],
)
def test_a_pair_that_fails_is_an_error(have, named):
    assert [finding.key for finding in versions.check_pairs(have)] == [named]
    assert versions.check_pairs({**have, list(have)[1]: "0.0.1"}) == []


@pytest.mark.parametrize(
    ("backend", "here", "count"),
    [
        ("flash", {"transformer_engine"}, 1),
        ("flash", {"transformer_engine", "flash_attn"}, 0),
        ("flash", set(), 0),
        ("fused", {"transformer_engine"}, 0),
    ],
)
def test_flash_attention_that_is_missing_beside_transformer_engine_is_said(backend, here, count, monkeypatch):
    monkeypatch.setattr(versions, "is_installed", here.__contains__)
    assert len(versions.check_kernels(Subject({f"{TRANSFORMER}.attention_backend": backend}))) == count
