"""Megatron's `torch_dist` checkpoints, read through torch.distributed.checkpoint (DCP), one slice at a time.

A reader asks for any box of a tensor and gets it from the stored ones that overlap. Needs no process group.
"""

import io
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from slipway.convert.torch_dist import check_folder
from slipway.errors import SlipwayError


class TorchDistReader:
    """Reads boxes of a checkpoint's tensors, whatever layout of ranks wrote it.

    Raises `SlipwayError` when `folder` holds no such checkpoint.
    """

    def __init__(self, folder: Path):
        check_folder(folder)
        self.folder = folder
        self._storage = dcp.FileSystemReader(folder)
        try:
            self._metadata: Metadata = self._storage.read_metadata()
            self._storage.set_up_storage_reader(self._metadata, is_coordinator=True)
            self._tensors = {
                key: stored
                for key, stored in self._metadata.state_dict_metadata.items()
                if isinstance(stored, TensorStorageMetadata)
            }
            self._shapes = {key: tuple(stored.size) for key, stored in self._tensors.items()}
            self._dtypes: dict[str, torch.dtype] = {
                key: stored.properties.dtype for key, stored in self._tensors.items()
            }
        except OSError:
            raise
        except Exception as error:  # a damaged pickle may ask for anything
            raise SlipwayError(f"{folder / '.metadata'}: damaged ({type(error).__name__}: {error})") from None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every stored tensor, by key."""
        return self._shapes

    def dtype(self, key: str) -> torch.dtype:
        """Return a stored tensor's element type."""
        return self._dtypes[key]

    def read(self, key: str, offset: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
        """Return the box of a tensor that starts at `offset`; memory: the box and one stored chunk.

        Raises `SlipwayError` when the stored chunks do not cover it or a file is damaged.
        """
        box = ChunkStorageMetadata(offsets=torch.Size(offset), sizes=torch.Size(shape))
        stored = self._tensors[key]
        try:
            items = create_read_items_for_chunk_list(key, stored, [box])
            if sum(item.lengths.numel() for item in items) != box.sizes.numel() or _overlap(items):
                raise SlipwayError(f"{self.folder}: {key} is stored with gaps or overlaps at {list(offset)}")
            target = torch.empty(box.sizes, dtype=self._dtypes[key])
            self._storage.read_data(LoadPlan(items), _Target(target)).wait()
        except SlipwayError:
            raise
        except Exception as error:  # what is damaged may be taken for anything
            raise SlipwayError(
                f"{self.folder}: cannot read {key} ({type(error).__name__}: {error}); the checkpoint is damaged"
            ) from None
        return target


def _overlap(items: Sequence[ReadItem]) -> bool:
    """Return whether two boxes have an element in common: then as many may be missing elsewhere."""
    boxes = [[(start, start + length) for start, length in zip(i.dest_offsets, i.lengths, strict=True)] for i in items]
    return any(
        all(
            begin < other_end and other_begin < end
            for (begin, end), (other_begin, other_end) in zip(*pair, strict=True)
        )
        for pair in combinations(boxes, 2)
    )


class _Target(LoadPlanner):
    """Receives what DCP reads for one box."""

    def __init__(self, tensor: torch.Tensor):
        self._tensor = tensor

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        target = self._tensor
        for axis, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            target = target.narrow(axis, start, length)
        return target

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        pass

    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        raise NotImplementedError

    def create_local_plan(self) -> LoadPlan:
        raise NotImplementedError

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        raise NotImplementedError

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        raise NotImplementedError

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise NotImplementedError
