"""Which tensors an architecture has, under which names in Hugging Face's format and in Megatron-core's.

This is data: one `ModelMap` per architecture, at the end of the file. To add an architecture, add its map there;
the parameter count, the converter, the exporter and their checks follow from it.

Megatron names are those of its Transformer Engine layers, which fuse each norm into the linear layer that follows.
A checkpoint of megatron-core 0.16.1 stacks equal tensors of all layers under one key, layers first; so most keys
here name no layer, and `Weight` describes one layer's slice; experts are stacked after layers in the same way. Where
some layers are dense and others have experts, it keeps layers apart: then keys have `{layer}`, and only experts are
stacked (`TransformerBlock.sharded_state_dict`: non-homogeneous layers).
"""

from dataclasses import dataclass
from enum import Enum


class Layout(Enum):
    """How the Hugging Face tensors of a `Weight` lie in its one Megatron tensor."""

    SAME = "same"
    """One tensor, unchanged."""

    GROUPED_QKV = "grouped_qkv"
    """Rows of q, k and v by key/value head: first that head's queries, then its key, then its value."""

    ROWS = "rows"
    """One after the other along the first axis (gate, then up)."""

    VOCABULARY = "vocabulary"
    """One tensor; Megatron's may have further rows of zeros so that tensor parallelism divides them."""


class Where(Enum):
    """Which models, and which of their layers, have a `Weight`."""

    EVERYWHERE = "everywhere"

    DENSE_LAYERS = "dense layers"
    """The first layers of a model of experts, which have an MLP instead."""

    EXPERT_LAYERS = "expert layers"
    """The other layers of such a model."""

    COMPRESSED_QUERIES = "compressed queries"
    """Models whose latent attention compresses queries too."""

    WHOLE_QUERIES = "whole queries"
    """Those whose latent attention does not."""


@dataclass(frozen=True)
class Part:
    """A Hugging Face tensor: its name, with `{layer}` and `{expert}` for their numbers, and its shape by dimension.

    Dimensions: `hidden`, `query` (heads x head_dim), `kv` (kv_heads x head_dim), `head` (head_dim), `intermediate`,
    `vocab`, `experts` (their number), `expert` (width of one), `shared` (width of the shared experts), `one`. Of
    latent attention: `query_rank`, `kv_rank`, `kv_rank_position` (with the keys' rotary part), `key_value` (heads x
    (key without its rotary part + value)), `value` (heads x value).
    """

    name: str
    shape: tuple[str, ...]


@dataclass(frozen=True)
class Weight:
    """A Megatron tensor (of one layer, of one expert) and what it is made of."""

    key: str
    parts: tuple[Part, ...]
    layout: Layout = Layout.SAME
    where: Where = Where.EVERYWHERE
    trained: bool = True
    """Whether it is a parameter, not a buffer."""

    @property
    def module(self) -> str:
        """Megatron module that it belongs to."""
        return self.key.rpartition(".")[0]

    @property
    def layers_apart(self) -> bool:
        """Whether each layer's has a key of its own."""
        return "{layer}" in self.key

    @property
    def per_layer(self) -> bool:
        """Whether each layer has one."""
        return "{layer}" in self.parts[0].name

    @property
    def per_expert(self) -> bool:
        """Whether each expert of a layer has one."""
        return "{expert}" in self.parts[0].name


@dataclass(frozen=True)
class ModelMap:
    """All tensors of an architecture.

    The first of `weights` is the embedding. `output` is there only when it is not tied to it. `extra_states` are the
    Megatron modules of a layer that save an (empty) Transformer Engine state beside their weights, in the layers that
    have one of these; `expert_states` those of an expert.
    """

    weights: tuple[Weight, ...]
    output: Weight
    extra_states: tuple[str, ...]
    expert_states: tuple[str, ...] = ()
    final_extra_states: tuple[str, ...] = ("decoder.final_layernorm",)

    @property
    def embedding_name(self) -> str:
        """Hugging Face name of the embedding."""
        return self.weights[0].parts[0].name

    @property
    def output_name(self) -> str:
        """Hugging Face name of the output layer's weight."""
        return self.output.parts[0].name


_HF = "model.layers.{layer}"
_MEGATRON = "decoder.layers"

_EMBEDDING = Weight(
    "embedding.word_embeddings.weight",
    (Part("model.embed_tokens.weight", ("vocab", "hidden")),),
    Layout.VOCABULARY,
)
_OUTPUT = Weight("output_layer.weight", (Part("lm_head.weight", ("vocab", "hidden")),), Layout.VOCABULARY)

_ATTENTION = (
    Weight(
        f"{_MEGATRON}.self_attention.linear_qkv.layer_norm_weight",
        (Part(f"{_HF}.input_layernorm.weight", ("hidden",)),),
    ),
    Weight(
        f"{_MEGATRON}.self_attention.linear_qkv.weight",
        (
            Part(f"{_HF}.self_attn.q_proj.weight", ("query", "hidden")),
            Part(f"{_HF}.self_attn.k_proj.weight", ("kv", "hidden")),
            Part(f"{_HF}.self_attn.v_proj.weight", ("kv", "hidden")),
        ),
        Layout.GROUPED_QKV,
    ),
    Weight(
        f"{_MEGATRON}.self_attention.linear_proj.weight",
        (Part(f"{_HF}.self_attn.o_proj.weight", ("hidden", "query")),),
    ),
)
_QKV_BIAS = Weight(
    f"{_MEGATRON}.self_attention.linear_qkv.bias",
    (
        Part(f"{_HF}.self_attn.q_proj.bias", ("query",)),
        Part(f"{_HF}.self_attn.k_proj.bias", ("kv",)),
        Part(f"{_HF}.self_attn.v_proj.bias", ("kv",)),
    ),
    Layout.GROUPED_QKV,
)
_QK_NORM = (
    Weight(f"{_MEGATRON}.self_attention.q_layernorm.weight", (Part(f"{_HF}.self_attn.q_norm.weight", ("head",)),)),
    Weight(f"{_MEGATRON}.self_attention.k_layernorm.weight", (Part(f"{_HF}.self_attn.k_norm.weight", ("head",)),)),
)


def _gated(
    megatron: str, gate: str, up: str, down: str, width: str, where: Where = Where.EVERYWHERE
) -> tuple[Weight, Weight]:
    """Return the two linear layers of a gated MLP."""
    return (
        Weight(
            f"{megatron}.linear_fc1.weight",
            (Part(gate, (width, "hidden")), Part(up, (width, "hidden"))),
            Layout.ROWS,
            where,
        ),
        Weight(f"{megatron}.linear_fc2.weight", (Part(down, ("hidden", width)),), where=where),
    )


def _named_gated(megatron: str, prefix: str, width: str, where: Where = Where.EVERYWHERE) -> tuple[Weight, Weight]:
    """Return those of an MLP whose tensors have the usual names."""
    gate, up, down = (f"{prefix}.{part}_proj.weight" for part in ("gate", "up", "down"))
    return _gated(megatron, gate, up, down, width, where)


_MLP_NORM = Part(f"{_HF}.post_attention_layernorm.weight", ("hidden",))
_MLP = (
    Weight(f"{_MEGATRON}.mlp.linear_fc1.layer_norm_weight", (_MLP_NORM,)),
    *_named_gated(f"{_MEGATRON}.mlp", f"{_HF}.mlp", "intermediate"),
)
# the norm before experts is a module of its own: the router reads its output too
_EXPERTS_NORM = Weight(f"{_MEGATRON}.pre_mlp_layernorm.weight", (_MLP_NORM,))
_EXPERT = f"{_MEGATRON}.mlp.experts.experts"


def _router(name: str) -> Weight:
    return Weight(f"{_MEGATRON}.mlp.router.weight", (Part(f"{_HF}.{name}", ("experts", "hidden")),))


_QWEN_EXPERTS = (
    _EXPERTS_NORM,
    _router("mlp.gate.weight"),
    *_named_gated(_EXPERT, f"{_HF}.mlp.experts.{{expert}}", "expert"),
)
_SHARED = f"{_MEGATRON}.mlp.shared_experts"
_QWEN2_SHARED_EXPERT = (
    *_named_gated(_SHARED, f"{_HF}.mlp.shared_expert", "shared"),
    Weight(f"{_SHARED}.gate_weight", (Part(f"{_HF}.mlp.shared_expert_gate.weight", ("one", "hidden")),)),
)
_MIXTRAL_EXPERT = f"{_HF}.block_sparse_moe.experts.{{expert}}"
_MIXTRAL_EXPERTS = (
    _EXPERTS_NORM,
    _router("block_sparse_moe.gate.weight"),
    *_gated(
        _EXPERT,
        f"{_MIXTRAL_EXPERT}.w1.weight",
        f"{_MIXTRAL_EXPERT}.w3.weight",
        f"{_MIXTRAL_EXPERT}.w2.weight",
        "expert",
    ),
)

_APART = f"{_MEGATRON}.{{layer}}"
_LATENT = f"{_APART}.self_attention"


def _latent(name: str, hugging_face: str, shape: tuple[str, ...], where: Where = Where.EVERYWHERE) -> Weight:
    return Weight(f"{_LATENT}.{name}", (Part(f"{_HF}.self_attn.{hugging_face}.weight", shape),), where=where)


_LATENT_ATTENTION = (
    Weight(f"{_APART}.input_layernorm.weight", (Part(f"{_HF}.input_layernorm.weight", ("hidden",)),)),
    _latent("linear_q_proj.weight", "q_proj", ("query", "hidden"), Where.WHOLE_QUERIES),
    _latent("linear_q_down_proj.weight", "q_a_proj", ("query_rank", "hidden"), Where.COMPRESSED_QUERIES),
    _latent("linear_q_up_proj.layer_norm_weight", "q_a_layernorm", ("query_rank",), Where.COMPRESSED_QUERIES),
    _latent("linear_q_up_proj.weight", "q_b_proj", ("query", "query_rank"), Where.COMPRESSED_QUERIES),
    _latent("linear_kv_down_proj.weight", "kv_a_proj_with_mqa", ("kv_rank_position", "hidden")),
    _latent("linear_kv_up_proj.layer_norm_weight", "kv_a_layernorm", ("kv_rank",)),
    _latent("linear_kv_up_proj.weight", "kv_b_proj", ("key_value", "kv_rank")),
    _latent("linear_proj.weight", "o_proj", ("hidden", "value")),
)
_DENSE_OR_EXPERTS = (
    Weight(f"{_APART}.mlp.linear_fc1.layer_norm_weight", (_MLP_NORM,), where=Where.DENSE_LAYERS),
    *_named_gated(f"{_APART}.mlp", f"{_HF}.mlp", "intermediate", Where.DENSE_LAYERS),
    Weight(f"{_APART}.pre_mlp_layernorm.weight", (_MLP_NORM,), where=Where.EXPERT_LAYERS),
    Weight(
        f"{_APART}.mlp.router.weight",
        (Part(f"{_HF}.mlp.gate.weight", ("experts", "hidden")),),
        where=Where.EXPERT_LAYERS,
    ),
    Weight(
        f"{_APART}.mlp.router.expert_bias",
        (Part(f"{_HF}.mlp.gate.e_score_correction_bias", ("experts",)),),
        where=Where.EXPERT_LAYERS,
        trained=False,
    ),
    *_named_gated(f"{_APART}.mlp.experts.experts", f"{_HF}.mlp.experts.{{expert}}", "expert", Where.EXPERT_LAYERS),
    *_named_gated(f"{_APART}.mlp.shared_experts", f"{_HF}.mlp.shared_experts", "shared", Where.EXPERT_LAYERS),
)
_FINAL_NORM = Weight("decoder.final_layernorm.weight", (Part("model.norm.weight", ("hidden",)),))

_ATTENTION_STATES = (f"{_MEGATRON}.self_attention.linear_qkv", f"{_MEGATRON}.self_attention.linear_proj")
_QK_NORM_STATES = (f"{_MEGATRON}.self_attention.q_layernorm", f"{_MEGATRON}.self_attention.k_layernorm")
_MLP_STATES = (f"{_MEGATRON}.mlp.linear_fc1", f"{_MEGATRON}.mlp.linear_fc2")
_LATENT_LINEAR = (
    "linear_q_proj",
    "linear_q_down_proj",
    "linear_q_up_proj",
    "linear_kv_down_proj",
    "linear_kv_up_proj",
    "linear_proj",
)
_MLP_LINEAR = ("linear_fc1", "linear_fc2")
_EXPERTS_NORM_STATE = f"{_MEGATRON}.pre_mlp_layernorm"
_EXPERT_STATES = (f"{_EXPERT}.linear_fc1", f"{_EXPERT}.linear_fc2")
_SHARED_STATES = (f"{_SHARED}.linear_fc1", f"{_SHARED}.linear_fc2")

_LLAMA = ModelMap(
    weights=(_EMBEDDING, *_ATTENTION, *_MLP, _FINAL_NORM),
    output=_OUTPUT,
    extra_states=(*_ATTENTION_STATES, *_MLP_STATES),
)

MAPS: dict[str, ModelMap] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": ModelMap(
        weights=(_EMBEDDING, *_ATTENTION, _QKV_BIAS, *_MLP, _FINAL_NORM),
        output=_OUTPUT,
        extra_states=(*_ATTENTION_STATES, *_MLP_STATES),
    ),
    "Qwen3ForCausalLM": ModelMap(
        weights=(_EMBEDDING, *_ATTENTION, *_QK_NORM, *_MLP, _FINAL_NORM),
        output=_OUTPUT,
        extra_states=(*_ATTENTION_STATES, *_MLP_STATES, *_QK_NORM_STATES),
    ),
    "Qwen2MoeForCausalLM": ModelMap(
        weights=(_EMBEDDING, *_ATTENTION, _QKV_BIAS, *_QWEN_EXPERTS, *_QWEN2_SHARED_EXPERT, _FINAL_NORM),
        output=_OUTPUT,
        extra_states=(*_ATTENTION_STATES, _EXPERTS_NORM_STATE, *_SHARED_STATES),
        expert_states=_EXPERT_STATES,
    ),
    "Qwen3MoeForCausalLM": ModelMap(
        weights=(_EMBEDDING, *_ATTENTION, *_QK_NORM, *_QWEN_EXPERTS, _FINAL_NORM),
        output=_OUTPUT,
        extra_states=(*_ATTENTION_STATES, _EXPERTS_NORM_STATE, *_QK_NORM_STATES),
        expert_states=_EXPERT_STATES,
    ),
    "MixtralForCausalLM": ModelMap(
        weights=(_EMBEDDING, *_ATTENTION, *_MIXTRAL_EXPERTS, _FINAL_NORM),
        output=_OUTPUT,
        extra_states=(*_ATTENTION_STATES, _EXPERTS_NORM_STATE),
        expert_states=_EXPERT_STATES,
    ),
    "DeepseekV3ForCausalLM": ModelMap(
        weights=(_EMBEDDING, *_LATENT_ATTENTION, *_DENSE_OR_EXPERTS, _FINAL_NORM),
        output=_OUTPUT,
        extra_states=(
            f"{_APART}.input_layernorm",
            *(f"{_LATENT}.{name}" for name in _LATENT_LINEAR),
            *(f"{_APART}.mlp.{name}" for name in _MLP_LINEAR),
            f"{_APART}.pre_mlp_layernorm",
            *(f"{_APART}.mlp.shared_experts.{name}" for name in _MLP_LINEAR),
        ),
        expert_states=tuple(f"{_APART}.mlp.experts.experts.{name}" for name in _MLP_LINEAR),
    ),
}
