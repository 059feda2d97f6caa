"""A model's dimensions, read from its `config.json`. Needs neither torch nor transformers."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.errors import SlipwayError
from slipway.models.maps import MAPS, ModelMap, Weight


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
    intermediate_size: int
    vocab_size: int
    max_positions: int
    """Longest sequence that the position embedding was made for, tokens."""
    tied_embeddings: bool
    """Whether the output layer is the embedding."""
    experts: int = 0
    """Routed experts a layer; 0: a dense model."""

    @property
    def map(self) -> ModelMap:
        """The architecture's tensors and their names."""
        return MAPS[self.name]

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The tensors that this model has."""
        return self.map.weights if self.tied_embeddings else (*self.map.weights, self.map.output)

    @property
    def parameter_count(self) -> int:
        """Exact number of parameters, tied ones counted once."""
        return sum(
            (self.layers if weight.per_layer else 1) * math.prod(self.shape(part.shape))
            for weight in self.weights
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
        }
        return tuple(sizes[name] for name in names)


def read_architecture(folder: Path) -> Architecture:
    """Read the `config.json` in a model's folder; raises `SlipwayError` as `architecture_from_config` does."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SlipwayError(f"{path}: missing; {folder} is not a model in Hugging Face format") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SlipwayError(f"{path}: not JSON ({error}); fetch the model again") from None
    if not isinstance(config, dict):
        raise SlipwayError(f"{path}: holds no JSON object; fetch the model again")
    return architecture_from_config(config, str(path))


def architecture_from_config(config: Mapping[str, Any], where: str = "config.json") -> Architecture:
    """Read dimensions from the content of a `config.json`; `where` names it in messages.

    Keys that old files leave out have the defaults of transformers 5. Raises `SlipwayError` when the architecture
    is not supported, a key is missing, or sizes contradict each other.
    """
    name = _supported_name(config, where)
    model_map = MAPS[name]
    for key in model_map.refused:
        if config.get(key):
            raise SlipwayError(
                f"{where}: {key} is {config[key]!r}, but verl's Megatron model of a {name} has no such biases; use a "
                "model without them"
            )
    _refuse_what_megatron_leaves_out(config, where)
    hidden, heads = _size(config, "hidden_size", where), _size(config, "num_attention_heads", where)
    kv_heads = heads if config.get("num_key_value_heads") is None else _size(config, "num_key_value_heads", where)
    if heads % kv_heads:
        raise SlipwayError(f"{where}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    if config.get("head_dim") is not None:
        head_dim = _size(config, "head_dim", where)
    elif model_map.head_dim is not None:
        head_dim = model_map.head_dim
    elif hidden % heads:
        raise SlipwayError(f"{where}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    else:
        head_dim = hidden // heads
    return Architecture(
        name=name,
        layers=_size(config, "num_hidden_layers", where),
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=_size(config, "intermediate_size", where),
        vocab_size=_size(config, "vocab_size", where),
        max_positions=_size(config, "max_position_embeddings", where),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def _supported_name(config: Mapping[str, Any], where: str) -> str:
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SlipwayError(f"{where}: architectures is {names!r}, but must be a list of names; fetch the model again")
    for name in names:
        if name in MAPS:
            return str(name)
    found = ", ".join(names) or f"none (model_type {config.get('model_type')!r})"
    raise SlipwayError(f"{where}: architecture {found} is not supported; supported are {', '.join(sorted(MAPS))}")


def _refuse_what_megatron_leaves_out(config: Mapping[str, Any], where: str) -> None:
    """Refuse what changes a model's mathematics but not its weights, and what mbridge 0.15.1 does not pass on.

    Conversion would be right bit for bit, and training would go on without an error: on another model than the one
    that the rollout samples from.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = (rope.get("rope_type") or rope.get("type") or "default") if isinstance(rope, dict) else rope
    if kind != "default":
        raise SlipwayError(
            f"{where}: its position embedding is scaled (rope type {kind!r}), which verl's Megatron model leaves out; "
            "use a model whose rope type is default"
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
