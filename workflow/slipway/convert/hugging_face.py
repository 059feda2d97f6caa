"""Tensors of a Hugging Face folder: read through memory maps, written at their place in a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from slipway.convert.bits import KINDS, Bits
from slipway.convert.mapped_files import MappedFiles
from slipway.models.weights import StoredTensor, read_header


class HuggingFaceReader:
    """Reads tensors that are views of mapped files: they cost no private memory, however large."""

    def __init__(self, folder: Path, tensors: Mapping[str, StoredTensor]):
        self.folder = folder
        self.tensors = tensors
        self._files = MappedFiles(folder)

    def read(self, name: str) -> Bits:
        """Return a tensor's bits; do not write to them."""
        stored = self.tensors[name]
        content = self._files.read(stored.file, stored.begin, stored.end)
        return np.frombuffer(content, dtype=KINDS[stored.dtype]).reshape(stored.shape)


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

    def write(self, name: str, bits: Bits) -> None:
        """Write a tensor, which has the shape and element size that the header says, at its place."""
        stored = self.tensors[name]
        assert bits.shape == stored.shape and bits.dtype == KINDS[stored.dtype], name
        handle = self._files[stored.file]
        handle.seek(stored.begin)
        handle.write(np.ascontiguousarray(bits).data)
        self.written.add(name)

    def close(self) -> None:
        """Close the files."""
        for handle in self._files.values():
            handle.close()
