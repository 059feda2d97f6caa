"""A model's parameters in either format, checked against its architecture when they are opened."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypeVar

from slipway.convert import layouts
from slipway.convert.bits import same_bits
from slipway.convert.hugging_face import HuggingFaceReader
from slipway.convert.layouts import Array
from slipway.errors import SlipwayError
from slipway.models.architecture import Architecture
from slipway.models.maps import Layout
from slipway.models.names import Piece, megatron_shapes
from slipway.models.parameters import parameters_among
from slipway.models.weights import read_tensors

Read = TypeVar("Read", covariant=True)


def open_parameters(folder: Path, architecture: Architecture) -> HuggingFaceReader:
    """Open a Hugging Face folder for reading the tensors that Megatron has; `tensors` of the result names them.

    Raises `SlipwayError` when names, shapes or types are not the architecture's.
    """
    stored = read_tensors(folder)
    parameters = parameters_among(stored, folder, architecture)
    _check_tied(HuggingFaceReader(folder, stored), architecture)
    return HuggingFaceReader(folder, parameters)


class CheckpointReader(Protocol[Read]):
    """An open Megatron checkpoint."""

    folder: Path

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every stored tensor, by key."""

    def read(self, key: str, offset: Sequence[int], shape: Sequence[int]) -> Read:
        """Return the box of a tensor that starts at `offset`."""


def check_checkpoint(checkpoint: CheckpointReader[Any], architecture: Architecture) -> None:
    """Raise `SlipwayError` when a checkpoint's keys or shapes are not the architecture's."""
    found, expected = checkpoint.shapes, megatron_shapes(architecture)
    if found.keys() != expected.keys():
        raise SlipwayError(
            f"{checkpoint.folder}: not a checkpoint of this {architecture.name}; missing keys: "
            f"{sorted(expected.keys() - found.keys()) or 'none'}, unknown keys: "
            f"{sorted(found.keys() - expected.keys()) or 'none'}"
        )
    padded = {weight.key for weight in architecture.weights if weight.layout is Layout.VOCABULARY}
    for key, shape in expected.items():
        fits = found[key][0] >= shape[0] and found[key][1:] == shape[1:] if key in padded else found[key] == shape
        if not fits:
            raise SlipwayError(
                f"{checkpoint.folder}: {key} has shape {list(found[key])}, but the model's config.json makes it "
                f"{list(shape)}"
            )


def read_parts(checkpoint: CheckpointReader[Array], piece: Piece, architecture: Architecture) -> list[Array]:
    """Return the Hugging Face tensors of a piece, without the padding of a vocabulary."""
    if piece.layout is Layout.ROWS:  # stored apart: gate and up
        starts = accumulate((shape[0] for shape in piece.shapes), initial=0)
        return [_read(checkpoint, piece, start, shape) for start, shape in zip(starts, piece.shapes, strict=False)]
    whole = checkpoint.shapes[piece.key][len(piece.index) :]
    return layouts.split(piece, _read(checkpoint, piece, 0, whole), architecture)


def _read(checkpoint: CheckpointReader[Array], piece: Piece, start: int, shape: tuple[int, ...]) -> Array:
    """Return rows of a piece, from `start` on."""
    offset = [*piece.index, start, *[0] * (len(shape) - 1)]
    return checkpoint.read(piece.key, offset, [*[1] * len(piece.index), *shape]).reshape(shape)


def _check_tied(reader: HuggingFaceReader, architecture: Architecture) -> None:
    """An output layer that is stored although it is tied must be the embedding, or one of the two would be lost."""
    output, embedding = architecture.map.output_name, architecture.map.embedding_name
    if not architecture.tied_embeddings or output not in reader.tensors:
        return
    if not same_bits(reader.read(output), reader.read(embedding)):
        raise SlipwayError(
            f"{reader.folder}: config.json ties the embeddings (tie_word_embeddings), but {output} differs from "
            f"{embedding}; set tie_word_embeddings to false, or remove {output}"
        )
