"""A model's dimensions, read from its `config.json`. Needs neither torch nor transformers.

Two ways in: `read_dimensions` takes every architecture of `families`, which is what planning a layout needs;
`read_architecture` is for a model that will be converted and trained, and refuses what that would get wrong.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.errors import SlipwayError
from slipway.models.deepseek_v3 import transformer_fields
from slipway.models.families import FAMILIES, ExpertKeys, Family
from slipway.models.maps import MAPS, ModelMap, Weight, Where


@dataclass(frozen=True)
class LatentAttention:
    """Widths of multi-head latent attention (MLA), elements."""

    query_rank: int | None
    """Compressed query; None: queries are not compressed."""
    key_value_rank: int
    """Compressed keys and values, shared by all heads."""
    position_dim: int
    """Rotary part of a key, shared by all heads, and of each head's query."""
    value_dim: int
    """Value of one head."""


@dataclass(frozen=True)
class Architecture:
    """What a model is made of; all sizes count elements."""

    name: str
    """Class in transformers, e.g. `Qwen2ForCausalLM`."""
    layers: int
    hidden_size: int
    heads: int
    """Attention (query) heads."""
    kv_heads: int
    """Key/value heads: query groups, in Megatron's words."""
    head_dim: int
    """Width of one head's query and key."""
    intermediate_size: int
    """Width of the MLP; in a model of experts alone, not used."""
    vocab_size: int
    max_positions: int
    """Longest sequence that the position embedding was made for, tokens."""
    tied_embeddings: bool
    """Whether the output layer is the embedding."""
    qkv_bias: bool = False
    """Whether the projections to query, key and value have a bias."""
    qk_norm: bool = False
    """Whether the heads' queries and keys are normed."""
    experts: int = 0
    """Routed experts a layer; 0: a dense model."""
    experts_per_token: int = 0
    expert_intermediate_size: int = 0
    """Width of one routed expert."""
    shared_intermediate_size: int = 0
    """Width of the shared experts together; 0: there are none."""
    dense_layers: int = 0
    """First layers of a model of experts that have an MLP instead."""
    latent: LatentAttention | None = None
    """None: ordinary attention."""
    further_token_layers: int = 0
    """Layers after the last that predict further tokens (MTP), which verl leaves out."""
    window: int | None = None
    """How many tokens back its layers attend, which Megatron does not limit; None: to all."""

    @property
    def corrections(self) -> Mapping[str, bool]:
        """Fields of Megatron's TransformerConfig that mbridge 0.15.1 sets otherwise than this model was made for."""
        return FAMILIES[self.name].corrections

    @property
    def fault(self) -> str:
        """Why verl needs Slipway's own bridge for this architecture; empty: mbridge's will do."""
        return FAMILIES[self.name].fault

    @property
    def map(self) -> ModelMap:
        """The architecture's tensors and their names; raises `SlipwayError` when conversion does not support it."""
        if self.name not in MAPS:
            raise SlipwayError(f"architecture {self.name} is not supported; supported are {', '.join(sorted(MAPS))}")
        return MAPS[self.name]

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The tensors that this model has."""
        weights = self.map.weights if self.tied_embeddings else (*self.map.weights, self.map.output)
        return tuple(weight for weight in weights if self._layers_with(weight))

    def layer_weights(self, layer: int) -> list[Weight]:
        """Return the tensors of a layer, which is counted from 0."""
        return [weight for weight in self.weights if weight.per_layer and layer in self._layers_with(weight)]

    def _layers_with(self, weight: Weight) -> range:
        compressed = self.latent is not None and self.latent.query_rank is not None
        match weight.where:
            case Where.DENSE_LAYERS:
                return range(self.dense_layers)
            case Where.EXPERT_LAYERS:
                return range(self.dense_layers, self.layers)
            case Where.COMPRESSED_QUERIES if not compressed:
                return range(0)
            case Where.WHOLE_QUERIES if compressed:
                return range(0)
        return range(self.layers)

    @property
    def further_layers(self) -> range:
        """Numbers that the layers of multi-token prediction have in Hugging Face's names."""
        return range(self.layers, self.layers + self.further_token_layers)

    @property
    def parameter_count(self) -> int:
        """Exact number of parameters, tied ones counted once; without multi-token prediction."""
        return sum(
            (len(self._layers_with(weight)) if weight.per_layer else 1)
            * (self.experts if weight.per_expert else 1)
            * math.prod(self.shape(part.shape))
            for weight in self.weights
            if weight.trained
            for part in weight.parts
        )

    def shape(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return the sizes of named dimensions (see `maps.Part`)."""
        sizes = {
            "hidden": self.hidden_size,
            "query": self.heads * self.head_dim,
            "kv": self.kv_heads * self.head_dim,
            "head": self.head_dim,
            "intermediate": self.intermediate_size,
            "vocab": self.vocab_size,
            "experts": self.experts,
            "expert": self.expert_intermediate_size,
            "shared": self.shared_intermediate_size,
            "one": 1,
        }
        if self.latent is not None:
            key_dim = self.head_dim - self.latent.position_dim
            sizes |= {
                "query_rank": self.latent.query_rank or 0,
                "kv_rank": self.latent.key_value_rank,
                "kv_rank_position": self.latent.key_value_rank + self.latent.position_dim,
                "key_value": self.heads * (key_dim + self.latent.value_dim),
                "value": self.heads * self.latent.value_dim,
            }
        return tuple(sizes[name] for name in names)


def read_architecture(folder: Path) -> Architecture:
    """Read the `config.json` in a model's folder; raises `SlipwayError` as `architecture_from_config` does."""
    path = folder / "config.json"
    return architecture_from_config(_read_config(path), str(path))


def read_dimensions(folder: Path) -> Architecture:
    """Read the `config.json` in a model's folder; raises `SlipwayError` as `dimensions_from_config` does."""
    path = folder / "config.json"
    return dimensions_from_config(_read_config(path), str(path))


def architecture_from_config(config: Mapping[str, Any], where: str = "config.json") -> Architecture:
    """Read the dimensions of a model to convert and train; `where` names its `config.json` in messages.

    Raises `SlipwayError` as `dimensions_from_config` does, and for every model whose Megatron counterpart would
    differ from it: an architecture without a name map, biases, scaled positions, windows, another activation.
    """
    name = _first_known(config, MAPS, where)
    family = FAMILIES[name]
    for computed in family.computed:
        value = config.get(computed.key, computed.default)
        if (bool(value) if isinstance(computed.value, bool) else value) != computed.value:
            raise SlipwayError(
                f"{where}: {computed.key} is {value!r}, but verl's Megatron model of a {name} {computed.why}; use a "
                f"model whose {computed.key} is {str(computed.value).lower()}"
            )
    _refuse_what_megatron_leaves_out(config, family, where)
    if family.latent_attention:
        transformer_fields(config, where)
    return dimensions_from_config(config, where)


def dimensions_from_config(config: Mapping[str, Any], where: str = "config.json") -> Architecture:
    """Read dimensions from the content of a `config.json`; `where` names it in messages.

    Keys that old files leave out have the defaults of transformers 5. Raises `SlipwayError` when the architecture
    is not known, a key is missing, or sizes contradict each other.
    """
    name = _first_known(config, FAMILIES, where)
    family = FAMILIES[name]
    hidden, heads = _size(config, "hidden_size", where), _size(config, "num_attention_heads", where)
    kv_heads = heads if config.get("num_key_value_heads") is None else _size(config, "num_key_value_heads", where)
    if heads % kv_heads:
        raise SlipwayError(f"{where}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    latent = _latent_attention(config, where) if family.latent_attention else None
    layers = _size(config, "num_hidden_layers", where)
    return Architecture(
        name=name,
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(config, family, latent, where),
        intermediate_size=_size(config, "intermediate_size", where),
        vocab_size=_size(config, "vocab_size", where),
        max_positions=_size(config, "max_position_embeddings", where),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bool(config.get(family.qkv_bias_key)) if family.qkv_bias_key else family.qkv_bias,
        qk_norm=family.qk_norm,
        latent=latent,
        further_token_layers=(config.get(family.further_token_layers) or 0) if family.further_token_layers else 0,
        window=_size(config, "sliding_window", where) if family.windowed and config.get("sliding_window") else None,
        **(_experts(config, family.experts, layers, where) if family.experts else {}),
    )


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SlipwayError(f"{path}: missing; {path.parent} is not a model in Hugging Face format") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SlipwayError(f"{path}: not JSON ({error}); fetch the model again") from None
    if not isinstance(config, dict):
        raise SlipwayError(f"{path}: holds no JSON object; fetch the model again")
    return config


def _head_dim(config: Mapping[str, Any], family: Family, latent: LatentAttention | None, where: str) -> int:
    if latent is not None:
        return _size(config, "qk_nope_head_dim", where) + latent.position_dim
    if config.get("head_dim") is not None:
        return _size(config, "head_dim", where)
    if family.head_dim is not None:
        return family.head_dim
    hidden, heads = _size(config, "hidden_size", where), _size(config, "num_attention_heads", where)
    if hidden % heads:
        raise SlipwayError(f"{where}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    return hidden // heads


def _latent_attention(config: Mapping[str, Any], where: str) -> LatentAttention:
    return LatentAttention(
        query_rank=None if config.get("q_lora_rank") is None else _size(config, "q_lora_rank", where),
        key_value_rank=_size(config, "kv_lora_rank", where),
        position_dim=_size(config, "qk_rope_head_dim", where),
        value_dim=_size(config, "v_head_dim", where),
    )


def _experts(config: Mapping[str, Any], keys: ExpertKeys, layers: int, where: str) -> dict[str, int]:
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise SlipwayError(
            f"{where}: some of its layers have no experts (mlp_only_layers, decoder_sparse_step), which verl's "
            "Megatron model leaves out; use a model with experts in every layer"
        )
    count = next((key for key in keys.count if key in config), keys.count[0])
    width = _size(config, keys.intermediate_size, where)
    if keys.shared_intermediate_size:
        shared = _size(config, keys.shared_intermediate_size, where)
    else:
        shared = (config.get(keys.shared_count, 1) or 0) * width if keys.shared_count else 0
    return {
        "experts": _size(config, count, where),
        "experts_per_token": _size(config, "num_experts_per_tok", where),
        "expert_intermediate_size": width,
        "shared_intermediate_size": shared,
        "dense_layers": min(config.get(keys.dense_layers) or 0, layers) if keys.dense_layers else 0,
    }


def _first_known(config: Mapping[str, Any], known: Mapping[str, Any], where: str) -> str:
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SlipwayError(f"{where}: architectures is {names!r}, but must be a list of names; fetch the model again")
    for name in names:
        if name in known:
            return str(name)
    found = ", ".join(names) or f"none (model_type {config.get('model_type')!r})"
    raise SlipwayError(f"{where}: architecture {found} is not supported; supported are {', '.join(sorted(known))}")


def _refuse_what_megatron_leaves_out(config: Mapping[str, Any], family: Family, where: str) -> None:
    """Refuse what changes a model's mathematics but not its weights, and what mbridge 0.15.1 does not pass on.

    Conversion would be right bit for bit, and training would go on without an error: on another model than the one
    that the rollout samples from.
    """
    if config.get("quantization_config"):
        raise SlipwayError(
            f"{where}: quantization_config says that its weights are quantised, which cannot be trained; take a model "
            "in bfloat16, or write this one as such (DeepSeek's own inference/fp8_cast_bf16.py does, of FP8) and "
            "remove quantization_config"
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = (rope.get("rope_type") or rope.get("type") or "default") if isinstance(rope, dict) else rope
    if kind not in ("default", *family.scaled_positions):
        raise SlipwayError(
            f"{where}: its position embedding is scaled (rope type {kind!r}), which verl's Megatron model leaves out; "
            f"use a model whose rope type is {' or '.join(('default', *family.scaled_positions))}"
        )
    windows = config.get("layer_types") or (["sliding_attention"] if config.get("use_sliding_window") else [])
    if any(kind != "full_attention" for kind in windows):
        raise SlipwayError(
            f"{where}: some layers attend to a window of tokens only (use_sliding_window, layer_types), which verl's "
            "Megatron model leaves out; use a model with full attention"
        )
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise SlipwayError(
            f"{where}: hidden_act is {activation!r}, but verl's Megatron model computes silu; use a model with that"
        )


def _size(config: Mapping[str, Any], key: str, where: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        found = "is missing" if key not in config else f"is {value!r}"
        raise SlipwayError(f"{where}: {key} {found}, but must be a whole number above 0")
    return value
