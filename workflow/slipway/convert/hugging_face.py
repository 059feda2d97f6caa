"""Tensors of a Hugging Face folder: read through memory maps, written at their place in a file."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import torch

from slipway.convert.bits import as_bytes
from slipway.convert.mapped_files import MappedFiles
from slipway.models.weights import StoredTensor, read_header

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


class HuggingFaceReader:
    """Reads tensors that are views of mapped files: they cost no private memory, however large."""

    def __init__(self, folder: Path, tensors: Mapping[str, StoredTensor]):
        self.folder = folder
        self.tensors = tensors
        self._files = MappedFiles(folder)

    def dtype(self, name: str) -> torch.dtype:
        """Return a tensor's element type."""
        return DTYPES[self.tensors[name].dtype]

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor; do not write to it."""
        stored = self.tensors[name]
        # A storage of just this tensor: DCP copies tensors whose storage is larger than they are.
        return torch.frombuffer(
            self._files[stored.file],
            dtype=DTYPES[stored.dtype],
            count=math.prod(stored.shape),
            offset=stored.begin,
        ).view(stored.shape)


class HuggingFaceWriter:
    """Writes tensors in any order into files with the same headers as those of `base`.

    Because the headers are the base model's byte for byte, so are names, shapes, types, the order of tensors and
    their split into files: the index of the base model holds for the new one.
    """

    def __init__(self, folder: Path, base: Path, tensors: Mapping[str, StoredTensor]):
        self.folder = folder
        self.tensors = tensors
        self.written: set[str] = set()
        self._files: dict[str, IO[bytes]] = {}
        for file in {tensor.file for tensor in tensors.values()}:
            handle = (folder / file).open("wb")
            handle.write(read_header(base / file))
            self._files[file] = handle

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write a tensor, which has the shape and type that the header says, at its place."""
        stored = self.tensors[name]
        assert tuple(tensor.shape) == stored.shape and tensor.dtype == DTYPES[stored.dtype], name
        handle = self._files[stored.file]
        handle.seek(stored.begin)
        handle.write(as_bytes(tensor).numpy().data)
        self.written.add(name)

    def close(self) -> None:
        """Close the files."""
        for handle in self._files.values():
            handle.close()
