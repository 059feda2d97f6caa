"""Megatron's `torch_dist` checkpoints, read through torch.distributed.checkpoint (DCP), one slice at a time.

A reader asks for any box of a tensor and gets it from the stored ones that overlap. Needs no process group.
"""

import io
import pickle
from collections.abc import Sequence
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
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
            raise SlipwayError(f"{folder / '.metadata'}: damaged ({error})") from None
        self._storage.set_up_storage_reader(self._metadata, is_coordinator=True)
        self._tensors = {
            key: stored
            for key, stored in self._metadata.state_dict_metadata.items()
            if isinstance(stored, TensorStorageMetadata)
        }

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every stored tensor, by key."""
        return {key: tuple(stored.size) for key, stored in self._tensors.items()}

    def dtype(self, key: str) -> torch.dtype:
        """Return a stored tensor's element type."""
        dtype: torch.dtype = self._tensors[key].properties.dtype
        return dtype

    def read(self, key: str, offset: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
        """Return the box of a tensor that starts at `offset`; memory: the box and one stored chunk.

        Raises `SlipwayError` when the stored chunks do not cover it or a file is damaged.
        """
        box = ChunkStorageMetadata(offsets=torch.Size(offset), sizes=torch.Size(shape))
        stored = self._tensors[key]
        items = create_read_items_for_chunk_list(key, stored, [box])
        if sum(item.lengths.numel() for item in items) != box.sizes.numel():
            raise SlipwayError(f"{self.folder}: {key} is stored with gaps or overlaps at {list(offset)}")
        target = torch.empty(box.sizes, dtype=stored.properties.dtype)
        try:
            self._storage.read_data(LoadPlan(items), _Target(target)).wait()
        except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
            raise SlipwayError(f"{self.folder}: cannot read {key} ({error}); the checkpoint is damaged") from None
        return target


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
