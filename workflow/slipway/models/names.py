"""A model's tensors one by one: the map of its architecture, unrolled over its layers."""

from collections.abc import Iterator
from dataclasses import dataclass

from slipway.models.architecture import Architecture
from slipway.models.maps import Layout, Weight

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """One Megatron tensor of one layer, and the Hugging Face tensors it is made of, in order."""

    key: str
    """Megatron's key; the same in all layers."""
    layer: int | None
    """Index of the layer, from 0; None: not in a layer."""
    layout: Layout
    names: tuple[str, ...]
    """Hugging Face names."""
    shapes: tuple[Shape, ...]
    """Their shapes."""

    @property
    def shape(self) -> Shape:
        """Shape in Megatron without the layer axis and without padding: parts lie along the first axis."""
        return (sum(shape[0] for shape in self.shapes), *self.shapes[0][1:])


def pieces(architecture: Architecture) -> Iterator[Piece]:
    """Yield every tensor of a model, layer by layer."""
    for weight in architecture.weights:
        if not weight.per_layer:
            yield _piece(weight, None, architecture)
    for layer in range(architecture.layers):
        for weight in architecture.weights:
            if weight.per_layer:
                yield _piece(weight, layer, architecture)


def _piece(weight: Weight, layer: int | None, architecture: Architecture) -> Piece:
    return Piece(
        key=weight.key,
        layer=layer,
        layout=weight.layout,
        names=tuple(part.name.format(layer=layer) for part in weight.parts),
        shapes=tuple(architecture.shape(part.shape) for part in weight.parts),
    )


def hugging_face_shapes(architecture: Architecture) -> dict[str, Shape]:
    """Return the shape of every tensor that a Hugging Face checkpoint of the model must have."""
    return {
        name: shape for piece in pieces(architecture) for name, shape in zip(piece.names, piece.shapes, strict=True)
    }


def megatron_shapes(architecture: Architecture) -> dict[str, Shape]:
    """Return the shape of every key of a Megatron checkpoint, stacked over layers, without padding."""
    return {
        piece.key: piece.shape if piece.layer is None else (architecture.layers, *piece.shape)
        for piece in pieces(architecture)
    }


def extra_state_keys(architecture: Architecture) -> list[str]:
    """Return the keys of Transformer Engine's (empty) module states, as Megatron's ShardedObject spells them.

    See `ShardedObject.unique_key` in megatron-core 0.16.1: index and number of layers are part of the key.
    """
    layers = architecture.layers
    return [
        f"{module}._extra_state/shard_{layer}_{layers}"
        for layer in range(layers)
        for module in architecture.map.extra_states
    ] + [f"{module}._extra_state/shard_0_1" for module in architecture.map.final_extra_states]


def is_redundant(name: str, architecture: Architecture) -> bool:
    """Return whether a Hugging Face tensor says nothing that the parameters do not say.

    These are tables of the rotary embedding in old files, and the output layer of a model with tied embeddings.
    """
    is_tied_output = architecture.tied_embeddings and name == architecture.map.output_name
    return is_tied_output or name.endswith(".rotary_emb.inv_freq")
