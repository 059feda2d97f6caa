"""Small random models of every architecture that Slipway converts, made with transformers' own classes."""

from collections.abc import Mapping
from typing import Any

from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
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
    "deepseek-v3": (DeepseekV3Config, DeepseekV3ForCausalLM),
    "deepseek-v3-whole-queries": (DeepseekV3Config, DeepseekV3ForCausalLM),
}
EXPERTS = {"num_experts_per_tok": 2, "num_experts": 4, "moe_intermediate_size": 24}
# Half of the groups are chosen, and two experts of each; YaRN from far fewer positions than there are.
LATENT = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 8,
        "beta_fast": 2,
        "beta_slow": 1,
        "mscale": 0.7,
        "mscale_all_dim": 1.0,
    },
}
FURTHER: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "qwen3": {"head_dim": 16},  # heads wider than hidden_size / heads, as the real ones are
    "mixtral": {"num_experts_per_tok": 2, "num_local_experts": 4},
    "qwen2-moe": EXPERTS | {"shared_expert_intermediate_size": 40},
    "qwen3-moe": EXPERTS | {"head_dim": 16, "norm_topk_prob": True},
    "deepseek-v3": LATENT,
    # as small ones of the family are: also one group of experts, positions not scaled
    "deepseek-v3-whole-queries": LATENT | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "rope_parameters": None},
}


def settings(kind: str, sizes: Mapping[str, Any], tied: bool = False) -> dict[str, Any]:
    """What the config of a kind is made from; `sizes` win over what it needs beside them."""
    found = FURTHER.get(kind, {}) | dict(sizes) | {"tie_word_embeddings": tied}
    # every head has its own key, whose width is the sum of two others
    without = ("num_key_value_heads", "head_dim") if kind.startswith("deepseek") else ()
    return {key: value for key, value in found.items() if key not in without} | dict.fromkeys(without[:1])


def build(kind: str, sizes: Mapping[str, Any], tied: bool = False) -> PreTrainedModel:
    """A model with random weights."""
    config, model = CLASSES[kind]
    return model(config(**settings(kind, sizes, tied)))
