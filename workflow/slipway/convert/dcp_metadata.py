"""The file `.metadata` of torch.distributed.checkpoint (DCP): which tensors there are, and where their chunks lie.

It is a pickle of DCP's own classes. Those here have their fields, are written under their names, and need no torch,
whose import with DCP takes longer than most conversions. Source: torch/distributed/checkpoint/{metadata,filesystem}.py
of torch 2.13.
"""

import enum
import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway.convert.pickles import Call, Name, Pickler, Unpickler
from slipway.errors import SlipwayError

FILE = ".metadata"
VERSION = "1.0.0"
DTYPES = {
    "BF16": Name("torch", "bfloat16"),
    "F16": Name("torch", "float16"),
    "F32": Name("torch", "float32"),
}
"""torch's types by safetensors' names."""

_PROTOCOL = 4


class Size(tuple[int, ...]):
    """A shape or an offset (`torch.Size`)."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Size, (tuple(self),)


@functools.cache
def size(numbers: tuple[int, ...]) -> Size:
    """Return a shape or offset: always the same object for equal ones, which is pickled once."""
    return Size(numbers)


class MemoryFormat(enum.Enum):
    """How elements lie: always in a row."""

    CONTIGUOUS = 0

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        # as Python 3.11.4 and later do by themselves; before, it names `getattr`
        return MemoryFormat, (self.value,)


class TensorProperties:
    """Of a stored tensor; only the type of its elements differs."""

    dtype: Name

    def __init__(self, dtype: Name):
        self.dtype = dtype

    def __getstate__(self) -> tuple[Any, ...]:
        # type, layout, whether it wants gradients, memory format, whether pinned
        return self.dtype, _STRIDED, False, MemoryFormat.CONTIGUOUS, False

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = state[0]


@dataclass
class StoredChunk:
    """A box of a tensor."""

    offsets: Size
    sizes: Size


@dataclass
class StoredTensor:
    """A tensor, stored in boxes."""

    properties: TensorProperties
    size: Size
    chunks: list[StoredChunk]


@dataclass
class StoredObject:
    """What is no tensor."""


@dataclass(frozen=True)
class Index:
    """Names a chunk, or an object, which has no offset. `index` is the chunk's number among those of its tensor."""

    fqn: str
    offset: Size | None = None
    index: int | None = field(default=None, compare=False)


@dataclass
class Place:
    """Where a chunk or object lies, in bytes."""

    relative_path: str
    offset: int
    length: int


@dataclass
class Metadata:
    """What there is, by key, and where."""

    state_dict_metadata: dict[str, StoredTensor | StoredObject]
    storage_data: dict[Index, Place]
    planner_data: Any = None
    storage_meta: Any = None
    version: str = VERSION


_STRIDED = Call(Name("torch.serialization", "_get_layout"), "torch.strided")
_MODULE = "torch.distributed.checkpoint.metadata"
_CLASSES: dict[type, Name] = {
    Metadata: Name(_MODULE, "Metadata"),
    StoredTensor: Name(_MODULE, "TensorStorageMetadata"),
    StoredObject: Name(_MODULE, "BytesStorageMetadata"),
    StoredChunk: Name(_MODULE, "ChunkStorageMetadata"),
    TensorProperties: Name(_MODULE, "TensorProperties"),
    MemoryFormat: Name(_MODULE, "_MEM_FORMAT_ENCODING"),
    Index: Name(_MODULE, "MetadataIndex"),
    Place: Name("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    Size: Name("torch", "Size"),
}


def write_metadata(path: Path, metadata: Metadata) -> None:
    """Write a `.metadata` file."""
    with path.open("wb") as file:
        Pickler(file, _PROTOCOL, _CLASSES).dump(metadata)


def read_metadata(path: Path) -> Metadata:
    """Read what `write_metadata` wrote; raises `SlipwayError` for anything else."""
    known: dict[Name, Any] = {name: kind for kind, name in _CLASSES.items()}
    known |= {name: name for name in DTYPES.values()}
    known[Name("torch.serialization", "_get_layout")] = str
    try:
        with path.open("rb") as file:
            metadata = Unpickler(file, known).load()
        _check(metadata)
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may ask for anything
        raise SlipwayError(f"{path}: damaged ({type(error).__name__}: {error})") from None
    return metadata


def _check(metadata: Any) -> None:
    """Raise `ValueError` or `AttributeError` when objects, which a pickle fills as it likes, are not of our kinds."""
    tensors = [value for value in metadata.state_dict_metadata.values() if not isinstance(value, StoredObject)]
    names = set(DTYPES.values())
    boxes = [chunk for tensor in tensors for chunk in tensor.chunks]
    sound = (
        isinstance(metadata, Metadata)
        and all(isinstance(key, str) for key in metadata.state_dict_metadata)
        and all(isinstance(tensor, StoredTensor) and tensor.properties.dtype in names for tensor in tensors)
        and all(_is_size(tensor.size) for tensor in tensors)
        and all(_is_size(box.offsets) and _is_size(box.sizes) for box in boxes)
        and all(
            isinstance(index, Index)
            and isinstance(place, Place)
            and isinstance(place.relative_path, str)
            and all(isinstance(number, int) and number >= 0 for number in (place.offset, place.length))
            for index, place in metadata.storage_data.items()
        )
    )
    if not sound:
        raise ValueError("holds something else")


def _is_size(value: Any) -> bool:
    return isinstance(value, Size) and all(isinstance(number, int) and number >= 0 for number in value)
