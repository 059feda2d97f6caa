"""Small random models of every architecture that Slipway converts, made with transformers' own classes."""

from collections.abc import Mapping
from typing import Any

from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

CLASSES: dict[str, tuple[type[PretrainedConfig], type[PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "qwen2-moe": (Qwen2MoeConfig, Qwen2MoeForCausalLM),
    "qwen3-moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
}
EXPERTS = {"num_experts_per_tok": 2, "num_experts": 4, "moe_intermediate_size": 24}
FURTHER: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "qwen3": {"head_dim": 16},  # heads wider than hidden_size / heads, as the real ones are
    "mixtral": {"num_experts_per_tok": 2, "num_local_experts": 4},
    "qwen2-moe": EXPERTS | {"shared_expert_intermediate_size": 40},
    "qwen3-moe": EXPERTS | {"head_dim": 16, "norm_topk_prob": True},
}


def settings(kind: str, sizes: Mapping[str, Any], tied: bool = False) -> dict[str, Any]:
    """What the config of a kind is made from; `sizes` win over what it needs beside them."""
    return FURTHER.get(kind, {}) | dict(sizes) | {"tie_word_embeddings": tied}


def build(kind: str, sizes: Mapping[str, Any], tied: bool = False) -> PreTrainedModel:
    """A model with random weights."""
    config, model = CLASSES[kind]
    return model(config(**settings(kind, sizes, tied)))
