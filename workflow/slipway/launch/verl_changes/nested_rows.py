"""Rows of torch's jagged nested tensors, one at a time, at a cost that doesn't grow with the number of rows.

torch takes row i of such a tensor by unbinding all of its rows (`select_int` in torch/nested/_internal/ops.py). verl's
Megatron engine goes through the rows of every micro batch in that way (`preprocess_thd_engine` in
verl/models/mcore/util.py, several times a pass), so that its cost grows with the square of the rows: for a small model
on a GPU that is most of a step. The row is a view of the same values here as there.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nested._internal import ops
from torch.nested._internal.nested_tensor import NestedTensor

# Attribute of an `offsets` tensor that holds them as integers: reading one from a GPU waits for the GPU.
_BOUNDS = "_slipway_bounds"


def install() -> None:
    """Replace torch's way in this process; once is enough, more often does no harm."""
    unbinding = ops.JAGGED_OPS_TABLE[torch.ops.aten.select.int]
    if not isinstance(unbinding, _Select):
        ops.JAGGED_OPS_TABLE[torch.ops.aten.select.int] = _Select(unbinding)


class _Select:
    """`aten.select.int` for nested tensors: rows by their bounds, anything else as torch does it."""

    def __init__(self, otherwise: Callable[..., Any]):
        self._otherwise = otherwise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs and len(args) == 3:
            nested, dimension, index = args
            # with lengths there are holes between the rows
            if dimension == 0 and isinstance(index, int) and nested.lengths() is None:
                row = _row(nested, index)
                if row is not None:
                    return row
        return self._otherwise(*args, **kwargs)


def _row(nested: NestedTensor, index: int) -> torch.Tensor | None:
    bounds = _bounds(nested.offsets())
    rows = len(bounds) - 1
    if not -rows <= index < rows:
        return None
    start, end = bounds[index % rows], bounds[index % rows + 1]
    row: torch.Tensor = nested._values.narrow(nested._ragged_idx - 1, start, end - start)
    return row


def _bounds(offsets: torch.Tensor) -> list[int]:
    bounds: list[int] | None = getattr(offsets, _BOUNDS, None)
    if bounds is None:
        bounds = offsets.tolist()
        setattr(offsets, _BOUNDS, bounds)
    return bounds
