"""How Hugging Face tensors lie in Megatron's: each layout in both directions.

Bytes are moved, never computed with: going there and back gives the same bits.
"""

from collections.abc import Sequence

import torch

from slipway.models.architecture import Architecture
from slipway.models.maps import Layout
from slipway.models.names import Piece


def join(piece: Piece, parts: Sequence[torch.Tensor], architecture: Architecture) -> torch.Tensor:
    """Make Megatron's tensor (`piece.shape`) from the Hugging Face tensors of a piece."""
    match piece.layout:
        case Layout.SAME | Layout.VOCABULARY:
            return parts[0]
        case Layout.ROWS:
            return torch.cat(list(parts))
        case Layout.GROUPED_QKV:
            groups = [part.view(architecture.kv_heads, -1, *part.shape[1:]) for part in parts]
            return torch.cat(groups, dim=1).view(piece.shape)


def split(piece: Piece, tensor: torch.Tensor, architecture: Architecture) -> list[torch.Tensor]:
    """Return the Hugging Face tensors of a piece (`piece.shapes`) from Megatron's, without its padding."""
    match piece.layout:
        case Layout.SAME:
            return [tensor]
        case Layout.VOCABULARY:
            return [tensor[: architecture.vocab_size]]
        case Layout.ROWS:
            return list(tensor.split([shape[0] for shape in piece.shapes]))
        case Layout.GROUPED_QKV:
            # [groups x (queries of a group + 1 key + 1 value) x head_dim, ...]
            groups = tensor.view(architecture.kv_heads, -1, *tensor.shape[1:])
            rows = [shape[0] // architecture.kv_heads for shape in piece.shapes]
            return [part.reshape(shape) for part, shape in zip(groups.split(rows, dim=1), piece.shapes, strict=True)]


def padded_rows(rows: int, multiple: int) -> int:
    """Return `rows` rounded up to a multiple."""
    return -(-rows // multiple) * multiple
