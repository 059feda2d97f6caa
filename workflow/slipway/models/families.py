"""What an architecture's name says that its sizes do not, and which keys of `config.json` hold the rest.

This is data: one `Family` per architecture, as mbridge 0.15.1 (`mbridge/models/*.py`) builds it in Megatron-core. It
may be wider than `maps.MAPS`: a model can be planned for, its memory forecast, before conversion supports it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ExpertKeys:
    """Keys of `config.json` that describe a mixture of experts; empty: there is no such key."""

    count: tuple[str, ...]
    """Routed experts of a layer; the first key that is there."""
    intermediate_size: str = "moe_intermediate_size"
    shared_intermediate_size: str = ""
    """Width of the shared experts together."""
    shared_count: str = ""
    """Shared experts, each as wide as a routed one."""
    dense_layers: str = ""
    """First layers, which have an MLP instead."""


@dataclass(frozen=True)
class Computed:
    """What verl's Megatron model of an architecture computes, whatever `config.json` says of it."""

    key: str
    value: bool | int | str
    default: bool | int | str
    """Of transformers, where `config.json` does not have the key."""
    why: str


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
    windowed: bool = False
    """Whether `sliding_window` alone, where it is set, limits how far back every layer attends."""
    scaled_positions: tuple[str, ...] = ()
    """Ways in which its position embedding may be scaled, of which Megatron computes others for no architecture."""
    further_token_layers: str = ""
    """Key of `config.json` with the number of layers that predict further tokens (MTP)."""
    computed: tuple[Computed, ...] = ()
    corrections: Mapping[str, bool] = field(default_factory=dict)
    """Fields of Megatron's TransformerConfig that mbridge 0.15.1 sets otherwise than the model was made for."""
    fault: str = ""
    """Why verl cannot train it with mbridge's own bridge, but with the one that Slipway registers."""


# transformers 5 writes the second, published files have the first
_QWEN_EXPERTS = ("num_experts", "num_local_experts")
_NO_ATTENTION_BIAS = Computed("attention_bias", False, False, "has no such biases")
_NO_MLP_BIAS = Computed("mlp_bias", False, False, "has no such biases")

FAMILIES = {
    "LlamaForCausalLM": Family(qkv_bias_key="attention_bias", computed=(_NO_ATTENTION_BIAS, _NO_MLP_BIAS)),
    "MistralForCausalLM": Family(windowed=True),
    "Qwen2ForCausalLM": Family(qkv_bias=True),
    "Qwen3ForCausalLM": Family(qk_norm=True, head_dim=128, computed=(_NO_ATTENTION_BIAS,)),
    "MixtralForCausalLM": Family(
        experts=ExpertKeys(("num_local_experts",), "intermediate_size"),
        windowed=True,
        # transformers normalises over the chosen experts; with the softmax first, Megatron does not
        corrections={"moe_router_pre_softmax": False},
        fault=(
            "verl alone cannot send its weights to the rollout: mbridge 0.15.1 takes head_dim from transformers 5, "
            "where it is None if config.json does not say."
        ),
    ),
    "Qwen2MoeForCausalLM": Family(
        qkv_bias=True,
        experts=ExpertKeys(_QWEN_EXPERTS, shared_intermediate_size="shared_expert_intermediate_size"),
        computed=(
            Computed("norm_topk_prob", False, False, "does not normalise over the chosen experts"),
            Computed("qkv_bias", True, True, "has these biases"),
        ),
        # mbridge maps the gate's weight, and builds no gate
        corrections={"moe_shared_expert_gate": True},
    ),
    "Qwen3MoeForCausalLM": Family(
        qk_norm=True,
        experts=ExpertKeys(_QWEN_EXPERTS),
        computed=(
            Computed("norm_topk_prob", True, False, "normalises over the chosen experts"),
            _NO_ATTENTION_BIAS,
        ),
    ),
    "DeepseekV3ForCausalLM": Family(
        experts=ExpertKeys(
            ("n_routed_experts",), shared_count="n_shared_experts", dense_layers="first_k_dense_replace"
        ),
        latent_attention=True,
        scaled_positions=("yarn",),
        further_token_layers="num_nextn_predict_layers",
        fault=(
            "verl alone cannot build it: mbridge 0.15.1 passes max_position_embeddings, which megatron-core 0.16.1 no "
            "longer takes, and leaves out YaRN and the groups of experts."
        ),
        computed=(
            _NO_ATTENTION_BIAS,
            Computed("norm_topk_prob", True, True, "normalises over the chosen experts"),
            Computed("scoring_func", "sigmoid", "sigmoid", "scores experts by a sigmoid"),
            Computed("topk_method", "noaux_tc", "noaux_tc", "chooses experts by score and bias"),
            Computed("moe_layer_freq", 1, 1, "has experts in every layer after the first dense ones"),
            Computed("rope_interleave", True, True, "takes pairs of neighbours in the rotary embedding"),
        ),
    ),
}
