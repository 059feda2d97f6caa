"""How Hugging Face tensors lie in Megatron's: each layout in both directions.

Bytes are moved, never computed with: going there and back gives the same bits.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from slipway.convert.bits import Bits
from slipway.models.architecture import Architecture
from slipway.models.maps import Layout
from slipway.models.names import Piece

if TYPE_CHECKING:
    import torch

Array = TypeVar("Array", Bits, "torch.Tensor")


def join(piece: Piece, parts: Sequence[Bits], architecture: Architecture) -> Bits:
    """Make Megatron's tensor (`piece.shape`) from the Hugging Face tensors of a piece."""
    match piece.layout:
        case Layout.SAME | Layout.VOCABULARY:
            return parts[0]
        case Layout.ROWS:
            return np.concatenate(parts)
        case Layout.GROUPED_QKV:
            groups = [part.reshape(architecture.kv_heads, -1, *part.shape[1:]) for part in parts]
            return np.concatenate(groups, axis=1).reshape(piece.shape)


def split(piece: Piece, tensor: Array, architecture: Architecture) -> list[Array]:
    """Return the Hugging Face tensors of a piece (`piece.shapes`) from Megatron's, without its padding."""
    match piece.layout:
        case Layout.SAME:
            return [tensor]
        case Layout.VOCABULARY:
            return [tensor[: architecture.vocab_size]]
        case Layout.ROWS:
            return [tensor[begin:end] for begin, end in _bounds([shape[0] for shape in piece.shapes])]
        case Layout.GROUPED_QKV:
            # [groups x (queries of a group + 1 key + 1 value) x head_dim, ...]
            groups = tensor.reshape(architecture.kv_heads, -1, *tensor.shape[1:])
            rows = _bounds([shape[0] // architecture.kv_heads for shape in piece.shapes])
            return [groups[:, begin:end].reshape(shape) for (begin, end), shape in zip(rows, piece.shapes, strict=True)]


def padded_rows(rows: int, multiple: int) -> int:
    """Return `rows` rounded up to a multiple."""
    return -(-rows // multiple) * multiple


def _bounds(lengths: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(accumulate(lengths, initial=0)))
