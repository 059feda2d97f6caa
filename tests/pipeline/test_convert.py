"""Conversion there and back on real files, and parity of logits between transformers and real Megatron models."""

from pathlib import Path

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from slipway.convert.to_megatron import convert_megatron

TOKENS = torch.randint(0, 96, (2, 11), generator=torch.Generator().manual_seed(0))
LAYOUTS = [(1, 1), (2, 1), (1, 2)]
DIMENSIONS = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def make_model(kind: str) -> PreTrainedModel:
    """A small model whose tensors are all different, norms and biases included."""
    match kind:
        case "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**DIMENSIONS, tie_word_embeddings=False))
        case "qwen2-tied":
            model = Qwen2ForCausalLM(Qwen2Config(**DIMENSIONS, tie_word_embeddings=True))
        case "qwen3":  # heads wider than hidden_size / heads, as the real ones are
            model = Qwen3ForCausalLM(Qwen3Config(**DIMENSIONS, head_dim=16, tie_word_embeddings=False))
        case "llama":
            model = LlamaForCausalLM(LlamaConfig(**DIMENSIONS, tie_word_embeddings=False))
        case _:
            raise ValueError(kind)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        around = 1.0 if parameter.ndim == 1 else 0.0
        parameter.data.copy_(around + 0.15 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


KINDS = ["qwen2", "qwen2-tied", "qwen3", "llama"]


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    for kind in KINDS:
        make_model(kind).save_pretrained(folder / kind)
    return {kind: folder / kind for kind in KINDS}


@pytest.fixture(scope="session")
def converted(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("converted")
    for kind, source in sources.items():
        convert_megatron(source, folder / kind)
    return {kind: folder / kind for kind in sources}
