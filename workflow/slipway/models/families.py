"""What an architecture's name says that its sizes do not, and which keys of `config.json` hold the rest.

This is data: one `Family` per architecture, as mbridge 0.15.1 (`mbridge/models/*.py`) builds it in Megatron-core. It is
wider than `maps.MAPS`: a model can be planned for, its memory forecast, before conversion supports it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ExpertKeys:
    """Keys of `config.json` that describe a mixture of experts; empty: there is no such key."""

    count: str
    """Routed experts of a layer."""
    intermediate_size: str = "moe_intermediate_size"
    shared_intermediate_size: str = ""
    """Width of the shared experts together."""
    shared_count: str = ""
    """Shared experts, each as wide as a routed one."""
    dense_layers: str = ""
    """First layers, which have an MLP instead."""


@dataclass(frozen=True)
class Family:
    """The traits of an architecture."""

    qkv_bias: bool = False
    """Whether the projections to query, key and value have a bias."""
    qkv_bias_key: str = ""
    """Key of `config.json` that decides it instead."""
    qk_norm: bool = False
    """Whether queries and keys are normed."""
    head_dim: int | None = None
    """Where `config.json` does not say; None: hidden_size / num_attention_heads."""
    experts: ExpertKeys | None = None
    latent_attention: bool = False
    """Whether keys and values come from a compressed vector (MLA)."""


FAMILIES = {
    "LlamaForCausalLM": Family(qkv_bias_key="attention_bias"),
    "MistralForCausalLM": Family(),
    "Qwen2ForCausalLM": Family(qkv_bias=True),
    "Qwen3ForCausalLM": Family(qk_norm=True, head_dim=128),
    "MixtralForCausalLM": Family(experts=ExpertKeys("num_local_experts", "intermediate_size")),
    "Qwen2MoeForCausalLM": Family(
        qkv_bias=True,
        experts=ExpertKeys("num_experts", shared_intermediate_size="shared_expert_intermediate_size"),
    ),
    "Qwen3MoeForCausalLM": Family(qk_norm=True, experts=ExpertKeys("num_experts")),
    "DeepseekV3ForCausalLM": Family(
        experts=ExpertKeys("n_routed_experts", shared_count="n_shared_experts", dense_layers="first_k_dense_replace"),
        latent_attention=True,
    ),
}
