"""The parameters of a Hugging Face folder, checked against its architecture by the headers of its files alone."""

from collections.abc import Mapping
from pathlib import Path

from slipway.models.architecture import Architecture
from slipway.models.names import hugging_face_shapes, is_left_out
from slipway.models.weights import StoredTensor, check_tensors, read_tensors


def stored_parameters(folder: Path, architecture: Architecture) -> dict[str, StoredTensor]:
    """Return where the tensors are that Megatron has too.

    Raises `SlipwayError` when a file is missing or cut off, or when names, shapes or types are not the architecture's.
    """
    return parameters_among(read_tensors(folder), folder, architecture)


def parameters_among(
    stored: Mapping[str, StoredTensor], folder: Path, architecture: Architecture
) -> dict[str, StoredTensor]:
    """Return those of the tensors of `folder` that Megatron has too, checked as in `stored_parameters`."""
    parameters = {name: tensor for name, tensor in stored.items() if not is_left_out(name, architecture)}
    check_tensors(folder, parameters, hugging_face_shapes(architecture))
    return parameters
