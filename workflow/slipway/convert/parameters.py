"""A model's parameters in either format, checked against its architecture when they are opened."""

from itertools import accumulate
from pathlib import Path

import torch

from slipway.convert import layouts
from slipway.convert.bits import same_bits
from slipway.convert.hugging_face import HuggingFaceReader
from slipway.convert.torch_dist import TorchDistReader
from slipway.errors import SlipwayError
from slipway.models.architecture import Architecture
from slipway.models.maps import Layout
from slipway.models.names import Piece, megatron_shapes
from slipway.models.parameters import stored_parameters
from slipway.models.weights import read_tensors


def open_parameters(folder: Path, architecture: Architecture) -> HuggingFaceReader:
    """Open a Hugging Face folder for reading the tensors that Megatron has; `tensors` of the result names them.

    Raises `SlipwayError` when names, shapes or types are not the architecture's.
    """
    parameters = stored_parameters(folder, architecture)
    _check_tied(HuggingFaceReader(folder, read_tensors(folder)), architecture)
    return HuggingFaceReader(folder, parameters)


def open_checkpoint(
    folder: Path, architecture: Architecture, reader: type[TorchDistReader] = TorchDistReader
) -> TorchDistReader:
    """Open a Megatron checkpoint; raises `SlipwayError` when its keys or shapes are not the architecture's."""
    checkpoint = reader(folder)
    found, expected = checkpoint.shapes, megatron_shapes(architecture)
    if found.keys() != expected.keys():
        raise SlipwayError(
            f"{folder}: not a checkpoint of this {architecture.name}; missing keys: "
            f"{sorted(expected.keys() - found.keys()) or 'none'}, unknown keys: "
            f"{sorted(found.keys() - expected.keys()) or 'none'}"
        )
    padded = {weight.key for weight in architecture.weights if weight.layout is Layout.VOCABULARY}
    for key, shape in expected.items():
        fits = found[key][0] >= shape[0] and found[key][1:] == shape[1:] if key in padded else found[key] == shape
        if not fits:
            raise SlipwayError(
                f"{folder}: {key} has shape {list(found[key])}, but the model's config.json makes it {list(shape)}"
            )
    return checkpoint


def read_parts(checkpoint: TorchDistReader, piece: Piece, architecture: Architecture) -> list[torch.Tensor]:
    """Return the Hugging Face tensors of a piece, without the padding of a vocabulary."""
    depth = len(piece.index)
    if piece.layout is Layout.ROWS:  # stored apart: gate and up
        starts = accumulate((shape[0] for shape in piece.shapes), initial=0)
        return [
            checkpoint.read(piece.key, [*piece.index, start, *[0] * (len(shape) - 1)], [*[1] * depth, *shape]).view(
                shape
            )
            for start, shape in zip(starts, piece.shapes, strict=False)
        ]
    whole = checkpoint.shapes[piece.key]
    offset, shape = [*piece.index, *[0] * (len(whole) - depth)], [*[1] * depth, *whole[depth:]]
    return layouts.split(piece, checkpoint.read(piece.key, offset, shape).view(whole[depth:]), architecture)


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
