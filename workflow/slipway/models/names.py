"""A model's tensors one by one: the map of its architecture, unrolled over its layers."""

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slipway.models.architecture import Architecture
from slipway.models.maps import Layout, Weight

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """One Megatron tensor of one layer and expert, and the Hugging Face tensors it is made of, in order."""

    key: str
    """Megatron's key; the same for all experts, and in all layers that are stacked."""
    index: tuple[int, ...]
    """Its place on the leading axes of the key's tensor: layer and expert, from 0; empty: nothing is stacked."""
    stack: tuple[int, ...]
    """Sizes of these axes."""
    layout: Layout
    names: tuple[str, ...]
    """Hugging Face names."""
    shapes: tuple[Shape, ...]
    """Their shapes."""
    trained: bool
    """Whether it is a parameter, which gradients move, not a buffer."""

    @property
    def shape(self) -> Shape:
        """Shape in Megatron without the leading axes and without padding: parts lie along the first axis."""
        return (sum(shape[0] for shape in self.shapes), *self.shapes[0][1:])


@functools.lru_cache(maxsize=1)
def pieces(architecture: Architecture) -> tuple[Piece, ...]:
    """Return every tensor of a model, layer by layer."""
    return tuple(_pieces(architecture))


def _pieces(architecture: Architecture) -> Iterator[Piece]:
    for weight in architecture.weights:
        if not weight.per_layer:
            yield _piece(weight, architecture)
    for layer in range(architecture.layers):
        for weight in architecture.layer_weights(layer):
            if weight.per_expert:
                for expert in range(architecture.experts):
                    yield _piece(weight, architecture, layer, expert)
            else:
                yield _piece(weight, architecture, layer)


def _piece(weight: Weight, architecture: Architecture, *index: int) -> Piece:
    numbers = dict(zip(("layer", "expert"), index, strict=False))
    place, stack = _stacking(weight.layers_apart, architecture, index)
    return Piece(
        key=weight.key.format(**numbers),
        index=place,
        stack=stack,
        layout=weight.layout,
        names=tuple(part.name.format(**numbers) for part in weight.parts),
        shapes=tuple(architecture.shape(part.shape) for part in weight.parts),
        trained=weight.trained,
    )


def _stacking(layers_apart: bool, architecture: Architecture, index: Shape) -> tuple[Shape, Shape]:
    """Return the place on the leading axes of what has this layer and expert, and the sizes of these axes."""
    sizes: Shape = (architecture.layers, architecture.experts)
    first = 1 if layers_apart else 0
    return index[first:], sizes[first : len(index)]


def hugging_face_shapes(architecture: Architecture) -> dict[str, Shape]:
    """Return the shape of every tensor that a Hugging Face checkpoint of the model must have."""
    return {
        name: shape for piece in pieces(architecture) for name, shape in zip(piece.names, piece.shapes, strict=True)
    }


def megatron_shapes(architecture: Architecture) -> dict[str, Shape]:
    """Return the shape of every key of a Megatron checkpoint, stacked over layers and experts, without padding."""
    return {piece.key: (*piece.stack, *piece.shape) for piece in pieces(architecture)}


def extra_state_keys(architecture: Architecture) -> list[str]:
    """Return the keys of Transformer Engine's (empty) module states, as Megatron's ShardedObject spells them.

    See `ShardedObject.unique_key` in megatron-core 0.16.1: indexes and numbers of layers and experts are part of it.
    """
    model = architecture.map
    return [
        *(
            f"{module.format(layer=layer)}._extra_state/shard_{_position(module, architecture, layer)}"
            for layer in range(architecture.layers)
            for module in _modules(architecture, layer, model.extra_states)
        ),
        *(
            f"{module.format(layer=layer)}._extra_state/shard_{_position(module, architecture, layer, expert)}"
            for layer in range(architecture.layers)
            for modules in [_modules(architecture, layer, model.expert_states)]
            for expert in range(architecture.experts)
            for module in modules
        ),
        *(f"{module}._extra_state/shard_0_1" for module in model.final_extra_states),
    ]


def _modules(architecture: Architecture, layer: int, modules: Iterable[str]) -> list[str]:
    """Return those of `modules` that a layer has."""
    there = {weight.module for weight in architecture.layer_weights(layer)}
    return [module for module in modules if module in there]


def _position(module: str, architecture: Architecture, *index: int) -> str:
    """Return where a module's state is among those stacked with it: indexes, then numbers, as in `0.2_3.4`."""
    places, numbers = _stacking("{layer}" in module, architecture, index)
    return f"{'.'.join(map(str, places or (0,)))}_{'.'.join(map(str, numbers or (1,)))}"


def is_left_out(name: str, architecture: Architecture) -> bool:
    """Return whether a Hugging Face tensor has no counterpart in Megatron's model.

    These are tables of the rotary embedding in old files and the output layer of a model with tied embeddings, which
    say nothing new, and layers that predict further tokens (MTP), which verl does not train.
    """
    is_tied_output = architecture.tied_embeddings and name == architecture.map.output_name
    return is_tied_output or name.endswith(".rotary_emb.inv_freq") or _layer_of(name) in architecture.further_layers


def _layer_of(name: str) -> int | None:
    found = re.match(r"model\.layers\.(\d+)\.", name)
    return int(found[1]) if found else None
