"""Megatron's `torch_dist` checkpoints: written, and read back, without torch.

Such a checkpoint is one of torch.distributed.checkpoint (DCP) with two small files beside it: `metadata.json`
names the format, `common.pt` holds what is not sharded. A tensor is stored as boxes ("chunks") of any size and
offset, each as `torch.save` writes it, one after the other in a few files; `.metadata` says where. Module states that
are no tensors are pickled lists, one key each (Megatron's `ShardedObject`).

`dcp_reader` reads what others wrote, whatever layout of ranks they had.
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slipway.convert import dcp_metadata
from slipway.convert.archive import object_archive, tensor_archive
from slipway.convert.bits import KINDS, Bits
from slipway.convert.dcp_metadata import (
    DTYPES,
    Index,
    Metadata,
    Place,
    Size,
    StoredChunk,
    StoredObject,
    StoredTensor,
    TensorProperties,
    size,
)
from slipway.convert.mapped_files import MappedFiles
from slipway.convert.reservation import reserve
from slipway.errors import SlipwayError

# See megatron.core.dist_checkpointing.core.CheckpointingConfig of megatron-core 0.16.1
FORMAT = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
FORMAT_FILE = "metadata.json"
# How many files there are, and threads that write them. Not the number of processors: equal work, equal bytes.
FILES = 2
# Linux 6.18 takes two to four times as long over a write of 4 MiB and more, for want of pages that lie together.
WRITE_BYTES = 2**20


@dataclass(frozen=True)
class Chunk:
    """A box of a stored tensor, made by `make` when it is written."""

    key: str
    whole: tuple[int, ...]
    """Shape of the whole tensor."""
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    """Element type, by safetensors' name."""
    make: Callable[[], Bits]


def check_folder(folder: Path) -> None:
    """Raise `SlipwayError` when `folder` holds no checkpoint of this format."""
    if not (folder / FORMAT_FILE).is_file() or not (folder / dcp_metadata.FILE).is_file():
        raise SlipwayError(
            f"{folder}: no Megatron torch_dist checkpoint ({FORMAT_FILE} or {dcp_metadata.FILE} is missing); verl "
            "writes one with actor.megatron.use_dist_checkpointing=True"
        )


def write_checkpoint(folder: Path, chunks: Sequence[Chunk], empty_objects: Sequence[str]) -> None:
    """Write a checkpoint into `folder`, which must not hold one.

    `empty_objects` are keys of module states without content. At any time one chunk a file is in memory. Raises
    `OSError` for what the disk refuses.
    """
    # What Megatron's own linear layers save: "keep compatibility with TE state dict". Transformer Engine takes None as
    # "nothing to restore".
    empty = object_archive([None])
    files = [_File(folder / f"__0_{number}.distcp") for number in range(FILES)]
    for number, key in enumerate(empty_objects):
        files[number % FILES].add_object(key, empty)
    numbers = _numbers_within_tensors(chunks)
    for chunk in chunks:  # in the order of the source, which is thus read from begin to end
        min(files, key=lambda file: file.payload_size).add_chunk(chunk, numbers[chunk.key, chunk.offset])
    with ThreadPoolExecutor(FILES) as pool:
        writing = [pool.submit(file.write) for file in files]
        metadata = Metadata(
            _tensors(chunks) | {key: StoredObject() for key in empty_objects},
            {index: place for file in files for index, place in file.places.items()},
        )
        dcp_metadata.write_metadata(folder / dcp_metadata.FILE, metadata)
        for written in writing:
            written.result()
    (folder / "common.pt").write_bytes(object_archive({}))
    (folder / FORMAT_FILE).write_text(json.dumps(FORMAT), encoding="utf-8")


class WrittenCheckpoint:
    """Reads what `write_checkpoint` wrote: chunks are views of mapped files, which cost no private memory.

    Raises `SlipwayError` when `folder` holds no such checkpoint.
    """

    def __init__(self, folder: Path):
        check_folder(folder)
        self.folder = folder
        self._metadata = dcp_metadata.read_metadata(folder / dcp_metadata.FILE)
        self._tensors = {
            key: stored
            for key, stored in self._metadata.state_dict_metadata.items()
            if isinstance(stored, StoredTensor)
        }
        names = {name: dtype for dtype, name in DTYPES.items()}
        self._dtypes = {key: names[stored.properties.dtype] for key, stored in self._tensors.items()}
        self._chunks = {
            (key, chunk.offsets): chunk.sizes for key, stored in self._tensors.items() for chunk in stored.chunks
        }
        self._files = MappedFiles(folder)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every stored tensor, by key."""
        return {key: tuple(stored.size) for key, stored in self._tensors.items()}

    def dtype(self, key: str) -> str:
        """Return a stored tensor's element type, by safetensors' name."""
        return self._dtypes[key]

    def read(self, key: str, offset: Sequence[int], shape: Sequence[int]) -> Bits:
        """Return the stored chunk that starts at `offset`; do not write to it.

        Raises `SlipwayError` when there is none of this shape, or it is not saved as `torch.save` saves it.
        """
        place = self._metadata.storage_data.get(Index(key, Size(offset)))
        if place is None or self._chunks.get((key, Size(offset))) != tuple(shape):
            raise SlipwayError(f"{self.folder}: {key} has no chunk of shape {list(shape)} at {list(offset)}")
        archive = tensor_archive(self._dtypes[key], tuple(shape))
        content = self._files.read(place.relative_path, place.offset, place.offset + place.length)
        end = len(archive.head) + archive.payload_size
        if content[: len(archive.head)] != archive.head or content[end:] != archive.tail:  # length included
            raise SlipwayError(f"{self.folder}: cannot read {key}; the checkpoint is damaged")
        return np.frombuffer(content[len(archive.head) : end], dtype=KINDS[self._dtypes[key]]).reshape(shape)


class _File:
    """One of the files: what it holds, and where."""

    def __init__(self, path: Path):
        self._path = path
        self._contents: list[bytes | Chunk] = []
        self._size = 0
        self.payload_size = 0
        self.places: dict[Index, Place] = {}

    def add_object(self, key: str, content: bytes) -> None:
        self._add(Index(key), content, len(content))

    def add_chunk(self, chunk: Chunk, number: int) -> None:
        """Add a chunk, which is its tensor's `number`-th."""
        archive = tensor_archive(chunk.dtype, chunk.shape)
        self._add(Index(chunk.key, size(chunk.offset), number), chunk, archive.size)
        self.payload_size += archive.payload_size

    def write(self) -> None:
        with self._path.open("wb") as file:
            reserve(file.fileno(), self._size)
            for content in self._contents:
                if isinstance(content, bytes):
                    file.write(content)
                    continue
                archive = tensor_archive(content.dtype, content.shape)
                bits = np.ascontiguousarray(content.make())
                assert bits.nbytes == archive.payload_size, content.key
                file.write(archive.head)
                payload = bits.reshape(-1).view(np.uint8).data
                for begin in range(0, len(payload), WRITE_BYTES):
                    file.write(payload[begin : begin + WRITE_BYTES])
                file.write(archive.tail)

    def _add(self, index: Index, content: bytes | Chunk, length: int) -> None:
        self.places[index] = Place(self._path.name, self._size, length)
        self._contents.append(content)
        self._size += length


def _numbers_within_tensors(chunks: Sequence[Chunk]) -> dict[tuple[str, tuple[int, ...]], int]:
    numbers: dict[tuple[str, tuple[int, ...]], int] = {}
    count: dict[str, int] = {}
    for chunk in chunks:
        numbers[chunk.key, chunk.offset] = count.setdefault(chunk.key, 0)
        count[chunk.key] += 1
    return numbers


def _tensors(chunks: Sequence[Chunk]) -> dict[str, StoredTensor | StoredObject]:
    tensors: dict[str, StoredTensor | StoredObject] = {}
    boxes: dict[str, list[StoredChunk]] = {}
    for chunk in chunks:
        if chunk.key not in tensors:
            boxes[chunk.key] = []
            tensors[chunk.key] = StoredTensor(
                TensorProperties(DTYPES[chunk.dtype]), size(chunk.whole), boxes[chunk.key]
            )
        boxes[chunk.key].append(StoredChunk(size(chunk.offset), size(chunk.shape)))
    return tensors
