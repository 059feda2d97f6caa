"""The weight files of a Hugging Face folder: what is in them and where, read from their headers alone.

Format of a safetensors file: 8 bytes with the header's length (little endian), the header (JSON: per tensor
dtype, shape and offsets into the rest), then the tensors' bytes.
"""

import json
import math
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from slipway.errors import SlipwayError
from slipway.manifest import fingerprint

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

# Bytes an element, of the types that weights are trained in. Others (int8, float8) are quantised models.
ELEMENT_BYTES = {"BF16": 2, "F16": 2, "F32": 4}

_LENGTH_BYTES = 8
# The safetensors library's own limit.
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor is: `begin` and `end` are bytes from the start of `file`."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.end - self.begin


def weight_files(folder: Path) -> list[str]:
    """Return the names of the safetensors files of a model, sorted; raises `SlipwayError` when one is missing."""
    index = folder / INDEX
    if index.is_file():
        files = sorted(set(_read_index(index).values()))
    elif (folder / SINGLE).is_file():
        files = [SINGLE]
    else:
        others = sorted(path.name for path in folder.glob("*.bin"))
        raise SlipwayError(
            f"{folder}: has neither {SINGLE} nor {INDEX}"
            + (f", only {others[0]}; save the model with save_pretrained() of transformers" if others else "")
        )
    for name in files:
        if not (folder / name).is_file():
            raise SlipwayError(f"{folder / name}: missing, though {INDEX} lists it; fetch the model again")
    return files


def read_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return every tensor of a model, in the order of files and offsets.

    Raises `SlipwayError` for a file that is cut off or damaged, and for an index that contradicts the files.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in weight_files(folder):
        for name, tensor in _read_file(folder / file).items():
            if name in tensors:
                raise SlipwayError(f"{folder}: tensor {name} is in {tensors[name].file} and in {file}")
            tensors[name] = tensor
    if (folder / INDEX).is_file():
        _check_index(folder / INDEX, tensors)
    return tensors


def read_header(path: Path) -> bytes:
    """Return the bytes of a safetensors file that come before the tensors."""
    with path.open("rb") as file:
        start = file.read(_LENGTH_BYTES)
        length = int.from_bytes(start, "little")
        if len(start) < _LENGTH_BYTES or length > min(_LONGEST_HEADER, path.stat().st_size):
            raise SlipwayError(f"{path}: not a safetensors file, or cut off; fetch it again")
        return start + file.read(length)


def tensor_digests(folder: Path, tensors: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Return the BLAKE3 digest of each tensor's bytes, reading the files through memory maps."""
    digests = {}
    for file in sorted({tensor.file for tensor in tensors.values()}):
        with (folder / file).open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            view = memoryview(content)
            for name, tensor in tensors.items():
                if tensor.file == file:
                    with view[tensor.begin : tensor.end] as data:
                        digests[name] = blake3(data, max_threads=blake3.AUTO).hexdigest()
            view.release()
    return digests


def weights_digest(tensors: Mapping[str, StoredTensor], digests: Mapping[str, str]) -> str:
    """Return one digest of a model's weights: of names, types, shapes and bytes, not of how files split them."""
    return fingerprint({name: [t.dtype, list(t.shape), digests[name]] for name, t in tensors.items()})


def check_tensors(folder: Path, found: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Check names, shapes and types of a model's tensors against what its architecture asks for."""
    missing = sorted(expected.keys() - found.keys())
    extra = sorted(found.keys() - expected.keys())
    if missing or extra:
        raise SlipwayError(
            f"{folder}: its tensors are not those of its config.json"
            + (f"; missing: {_some(missing)}" if missing else "")
            + (f"; not known: {_some(extra)}" if extra else "")
        )
    for name, shape in expected.items():
        tensor = found[name]
        if tensor.shape != shape:
            raise SlipwayError(
                f"{folder / tensor.file}: {name} has shape {list(tensor.shape)}, but config.json makes it {list(shape)}"
            )
        if tensor.dtype not in ELEMENT_BYTES:
            raise SlipwayError(
                f"{folder / tensor.file}: {name} is of type {tensor.dtype}; supported are "
                f"{', '.join(sorted(ELEMENT_BYTES))} (a quantised model cannot be trained: take the original)"
            )


def _read_file(path: Path) -> dict[str, StoredTensor]:
    start = read_header(path)
    try:
        header = json.loads(start[_LENGTH_BYTES:])
        tensors = {
            name: StoredTensor(
                path.name,
                entry["dtype"],
                tuple(entry["shape"]),
                len(start) + entry["data_offsets"][0],
                len(start) + entry["data_offsets"][1],
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SlipwayError(f"{path}: its header is damaged ({error!r}); fetch it again") from None
    size, end = path.stat().st_size, max((tensor.end for tensor in tensors.values()), default=len(start))
    if size != end:
        raise SlipwayError(f"{path}: has {size} bytes, but its header describes {end}; fetch it again")
    for name, tensor in tensors.items():
        element = ELEMENT_BYTES.get(tensor.dtype)
        if element is not None and tensor.size != element * math.prod(tensor.shape):
            raise SlipwayError(f"{path}: {name} has {tensor.size} bytes, which is not its shape; fetch it again")
    return dict(sorted(tensors.items(), key=lambda item: item[1].begin))


def _read_index(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SlipwayError(f"{path}: not an index of safetensors files ({error!r}); fetch it again") from None


def _check_index(path: Path, tensors: Mapping[str, StoredTensor]) -> None:
    index = _read_index(path)
    wrong = sorted(
        name
        for name in index.keys() | tensors.keys()
        if name not in index or name not in tensors or index[name] != tensors[name].file
    )
    if wrong:
        raise SlipwayError(f"{path}: contradicts the files about {_some(wrong)}; fetch the model again")


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
