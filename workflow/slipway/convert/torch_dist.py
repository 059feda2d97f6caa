"""Megatron's `torch_dist` checkpoints, written and read one slice at a time.

Such a checkpoint is one of torch.distributed.checkpoint (DCP) with two small files beside it: `metadata.json`
names the format, `common.pt` holds what is not sharded. A tensor is stored as boxes ("chunks") of any size and
offset; a reader asks for any box and gets it from those that overlap. Module states that are no tensors are pickled
lists, one key each (Megatron's `ShardedObject`).

DCP writes a tensor when its turn comes, through `SavePlanner.resolve_data`; `_Planner` makes it at that moment.
Reading and writing need no process group.
"""

import io
import json
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.storage import WriteResult

from slipway.convert.archive import find_payload
from slipway.convert.mapped_files import MappedFiles
from slipway.errors import SlipwayError

# See megatron.core.dist_checkpointing.core.CheckpointingConfig of megatron-core 0.16.1
FORMAT = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}


@dataclass(frozen=True)
class Chunk:
    """A box of a stored tensor, made by `make` when it is written."""

    key: str
    whole: tuple[int, ...]
    """Shape of the whole tensor."""
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], torch.Tensor]


def write_checkpoint(folder: Path, chunks: Sequence[Chunk], empty_objects: Sequence[str], threads: int = 2) -> None:
    """Write a checkpoint into `folder`, which must not hold one.

    `empty_objects` are keys of module states without content. `threads` is how many files are written at once.
    At any time one chunk a thread is in memory. Raises `OSError` for what the disk refuses.
    """
    planner = _Planner(chunks, empty_objects)
    writer = _Writer(folder, len(chunks) + len(empty_objects), threads)
    try:
        with _without_checksums():
            dcp.save({}, storage_writer=writer, planner=planner, no_dist=True)
    except CheckpointException as error:  # no Exception, to torch
        raise _fault_of_disk(error) from error
    torch.save({}, folder / "common.pt")
    (folder / "metadata.json").write_text(json.dumps(FORMAT), encoding="utf-8")


def _fault_of_disk(error: CheckpointException) -> OSError:
    """Return what the system said; torch wraps it, and its own archive then finds itself too short."""
    for fault, _ in error.failures.values():
        link: BaseException | None = fault
        while link is not None:
            if isinstance(link, OSError):
                return link
            link = link.__cause__ or link.__context__
    return OSError(str(next(iter(error.failures.values()))[0]))


@contextmanager
def _without_checksums() -> Iterator[None]:
    """Leave out the CRC-32 in torch's archives: it takes as long as writing, and torch.load does not look at it.

    The manifest has a stronger digest of every file.
    """
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


class TorchDistReader:
    """Reads boxes of a checkpoint's tensors, whatever layout of ranks wrote it.

    Raises `SlipwayError` when `folder` holds no such checkpoint.
    """

    def __init__(self, folder: Path):
        if not (folder / "metadata.json").is_file() or not (folder / ".metadata").is_file():
            raise SlipwayError(
                f"{folder}: no Megatron torch_dist checkpoint (metadata.json or .metadata is missing); verl writes one "
                "with actor.megatron.use_dist_checkpointing=True"
            )
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


class MappedReader(TorchDistReader):
    """Reads what this module wrote: chunks are views of mapped files, which cost no private memory.

    A box that is not one stored chunk is read as `TorchDistReader` does.
    """

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._files = MappedFiles(folder)

    def read(self, key: str, offset: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
        """Return the box of a tensor that starts at `offset`; do not write to it."""
        place = self._metadata.storage_data.get(MetadataIndex(key, torch.Size(offset)))
        chunks = self._tensors[key].chunks
        if place is None or not any(
            tuple(c.offsets) == tuple(offset) and tuple(c.sizes) == tuple(shape) for c in chunks
        ):
            return super().read(key, offset, shape)
        archive = self._files[place.relative_path][place.offset : place.offset + place.length]
        dtype = self.dtype(key)
        try:
            payload = find_payload(archive)
        except ValueError as error:
            raise SlipwayError(f"{self.folder}: cannot read {key} ({error}); the checkpoint is damaged") from None
        count = math.prod(shape)
        if payload.size != count * dtype.itemsize:
            raise SlipwayError(f"{self.folder}: {key} has {payload.size} bytes, which is not its shape")
        return torch.frombuffer(archive, dtype=dtype, count=count, offset=payload.begin).view(*shape)


class _Writer(dcp.FileSystemWriter):
    """DCP's writer, without the path and the random id it puts into `.metadata`: equal work, equal bytes."""

    def __init__(self, folder: Path, items: int, threads: int):
        # the files are forced to disk when the product is published, by when most of them are there
        super().__init__(folder, thread_count=threads, overwrite=False, sync_files=False)
        self._items = items

    def storage_meta(self) -> StorageMeta | None:
        return None

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        # In the order of files and offsets, not in that in which threads came to an end.
        written = sorted(
            (result for of_rank in results for result in of_rank),
            key=lambda result: (result.storage_data.relative_path, result.storage_data.offset),
        )
        if len(written) != self._items:  # DCP does not pass on what is raised in its further threads
            raise OSError(f"only {len(written)} of {self._items} tensors could be written; see the error above")
        super().finish(metadata, [written])


class _Planner(SavePlanner):
    """Tells DCP which chunks there are, and makes each when it is written."""

    def __init__(self, chunks: Sequence[Chunk], empty_objects: Sequence[str]):
        self._make = {_index(chunk): chunk.make for chunk in chunks}
        self._items = [_tensor_item(chunk) for chunk in chunks] + [
            WriteItem(index=MetadataIndex(key), type=WriteItemType.BYTE_IO) for key in empty_objects
        ]

    def set_up_planner(
        self, state_dict: Any, storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        pass

    def create_local_plan(self) -> SavePlan:
        return SavePlan(self._items)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return create_default_global_save_plan(all_plans)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        # DCP calls this in the thread that writes, and torch keeps the setting for each thread by itself
        torch.serialization.set_crc32_options(False)
        if write_item.type == WriteItemType.BYTE_IO:
            # What Megatron's own linear layers save: "keep compatibility with TE state dict". Transformer Engine
            # takes None as "nothing to restore".
            content = io.BytesIO()
            torch.save([None], content)
            return content
        return self._make[write_item.index]()


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


def _index(chunk: Chunk) -> MetadataIndex:
    return MetadataIndex(chunk.key, chunk.offset)


def _tensor_item(chunk: Chunk) -> WriteItem:
    return WriteItem(
        index=_index(chunk),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(offsets=torch.Size(chunk.offset), sizes=torch.Size(chunk.shape)),
            properties=TensorProperties(dtype=chunk.dtype),
            size=torch.Size(chunk.whole),
        ),
    )
