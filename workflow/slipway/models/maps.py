"""Which tensors an architecture has, under which names in Hugging Face's format and in Megatron-core's.

This is data: one `ModelMap` per architecture, at the end of the file. To add an architecture, add its map there;
the parameter count, the converter, the exporter and their checks follow from it.

Megatron names are those of its Transformer Engine layers, which fuse each norm into the linear layer that follows.
A checkpoint of megatron-core 0.16.1 stacks equal tensors of all layers under one key, layers first; so the
keys here name no layer, and `Weight` describes one layer's slice.
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


@dataclass(frozen=True)
class Part:
    """A Hugging Face tensor: its name, `{layer}` standing for the layer, and its shape in dimensions' names.

    Dimensions: `hidden`, `query` (heads x head_dim), `kv` (kv_heads x head_dim), `head` (head_dim), `intermediate`,
    `vocab`.
    """

    name: str
    shape: tuple[str, ...]


@dataclass(frozen=True)
class Weight:
    """A Megatron tensor (of one layer) and what it is made of."""

    key: str
    parts: tuple[Part, ...]
    layout: Layout = Layout.SAME

    @property
    def per_layer(self) -> bool:
        """Whether each layer has one."""
        return "{layer}" in self.parts[0].name


@dataclass(frozen=True)
class ModelMap:
    """All tensors of an architecture.

    The first of `weights` is the embedding. `output` is there only when it is not tied to it. `extra_states` are the
    Megatron modules of a layer that save an (empty) Transformer Engine state beside their weights. `refused` are keys
    of `config.json` that, when true, give the model tensors that verl's Megatron model does not have.
    """

    weights: tuple[Weight, ...]
    output: Weight
    extra_states: tuple[str, ...]
    refused: tuple[str, ...] = ()
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

_LAYER = (
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
    Weight(
        f"{_MEGATRON}.mlp.linear_fc1.layer_norm_weight",
        (Part(f"{_HF}.post_attention_layernorm.weight", ("hidden",)),),
    ),
    Weight(
        f"{_MEGATRON}.mlp.linear_fc1.weight",
        (
            Part(f"{_HF}.mlp.gate_proj.weight", ("intermediate", "hidden")),
            Part(f"{_HF}.mlp.up_proj.weight", ("intermediate", "hidden")),
        ),
        Layout.ROWS,
    ),
    Weight(
        f"{_MEGATRON}.mlp.linear_fc2.weight",
        (Part(f"{_HF}.mlp.down_proj.weight", ("hidden", "intermediate")),),
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
_FINAL_NORM = Weight("decoder.final_layernorm.weight", (Part("model.norm.weight", ("hidden",)),))

_LINEARS = (
    f"{_MEGATRON}.self_attention.linear_qkv",
    f"{_MEGATRON}.self_attention.linear_proj",
    f"{_MEGATRON}.mlp.linear_fc1",
    f"{_MEGATRON}.mlp.linear_fc2",
)

MAPS: dict[str, ModelMap] = {
    "LlamaForCausalLM": ModelMap(
        weights=(_EMBEDDING, *_LAYER, _FINAL_NORM),
        output=_OUTPUT,
        extra_states=_LINEARS,
        refused=("attention_bias", "mlp_bias"),
    ),
    "Qwen2ForCausalLM": ModelMap(
        weights=(_EMBEDDING, *_LAYER, _QKV_BIAS, _FINAL_NORM),
        output=_OUTPUT,
        extra_states=_LINEARS,
    ),
    "Qwen3ForCausalLM": ModelMap(
        weights=(_EMBEDDING, *_LAYER, *_QK_NORM, _FINAL_NORM),
        output=_OUTPUT,
        extra_states=(
            *_LINEARS,
            f"{_MEGATRON}.self_attention.q_layernorm",
            f"{_MEGATRON}.self_attention.k_layernorm",
        ),
        refused=("attention_bias",),
    ),
}
