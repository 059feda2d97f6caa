"""A model's tensors one by one: the map of its architecture, unrolled over its layers."""

from collections.abc import Iterator
from dataclasses import dataclass

from slipway.models.architecture import Architecture
from slipway.models.maps import Layout, Weight

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """One Megatron tensor of one layer and expert, and the Hugging Face tensors it is made of, in order."""

    key: str
    """Megatron's key; the same in all layers and for all experts."""
    index: tuple[int, ...]
    """Its place on the leading axes of the key's tensor: layer and expert, from 0; empty: not in a layer."""
    stack: tuple[int, ...]
    """Sizes of these axes."""
    layout: Layout
    names: tuple[str, ...]
    """Hugging Face names."""
    shapes: tuple[Shape, ...]
    """Their shapes."""

    @property
    def shape(self) -> Shape:
        """Shape in Megatron without the leading axes and without padding: parts lie along the first axis."""
        return (sum(shape[0] for shape in self.shapes), *self.shapes[0][1:])


def pieces(architecture: Architecture) -> Iterator[Piece]:
    """Yield every tensor of a model, layer by layer."""
    for weight in architecture.weights:
        if not weight.per_layer:
            yield _piece(weight, architecture)
    for layer in range(architecture.layers):
        for weight in architecture.weights:
            if weight.per_expert:
                for expert in range(architecture.experts):
                    yield _piece(weight, architecture, layer, expert)
            elif weight.per_layer:
                yield _piece(weight, architecture, layer)


def _piece(weight: Weight, architecture: Architecture, *index: int) -> Piece:
    numbers = dict(zip(("layer", "expert"), index, strict=False))
    return Piece(
        key=weight.key,
        index=index,
        stack=(architecture.layers, architecture.experts)[: len(index)],
        layout=weight.layout,
        names=tuple(part.name.format(**numbers) for part in weight.parts),
        shapes=tuple(architecture.shape(part.shape) for part in weight.parts),
    )


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
    layers, experts = architecture.layers, architecture.experts
    model = architecture.map
    return [
        *(f"{module}._extra_state/shard_{layer}_{layers}" for layer in range(layers) for module in model.extra_states),
        *(
            f"{module}._extra_state/shard_{layer}.{expert}_{layers}.{experts}"
            for layer in range(layers)
            for expert in range(experts)
            for module in model.expert_states
        ),
        *(f"{module}._extra_state/shard_0_1" for module in model.final_extra_states),
    ]


def is_redundant(name: str, architecture: Architecture) -> bool:
    """Return whether a Hugging Face tensor says nothing that the parameters do not say.

    These are tables of the rotary embedding in old files, and the output layer of a model with tied embeddings.
    """
    is_tied_output = architecture.tied_embeddings and name == architecture.map.output_name
    return is_tied_output or name.endswith(".rotary_emb.inv_freq")
