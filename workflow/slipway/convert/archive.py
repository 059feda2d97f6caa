"""What `torch.save` writes, byte for byte, without torch: its import takes longer than most conversions.

Such a file is a zip archive whose members are not compressed: a pickle, which names the tensor's storage, the
storage's bytes, and small members about the format. Each member is preceded by padding, so that its content begins
at a multiple of 64 bytes. Checksums are left out, as `torch.serialization.set_crc32_options(False)` does: they take as
long as writing, `torch.load` does not look at them, and the manifest has a stronger digest of every file.

Source: caffe2/serialize/inline_container.cc of torch 2.13 and the zip specification (APPNOTE 6.3), 4.3.
"""

import collections
import functools
import io
import math
import struct
from dataclasses import dataclass
from typing import Any

from slipway.convert.pickles import Call, Name, Pickler

STORAGES = {"BF16": "BFloat16Storage", "F16": "HalfStorage", "F32": "FloatStorage"}
"""torch's storage types by safetensors' name of the element type."""
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4}

_ALIGNMENT = 64
_PROTOCOL = 2
# From here on sizes and places are in a further field of 64 bits.
_LARGE = 2**32 - 1
# torch's hash of the members' names, then the sum of the checksums, of which there are none
_ID_OF_TENSOR = b"1572819951185464302603005401530805769991"
_ID_OF_OBJECT = b"0290846867776292310400046082544174525093"


@dataclass(frozen=True)
class Archive:
    """A saved tensor but for its `payload_size` bytes, which lie between `head` and `tail`."""

    head: bytes
    payload_size: int
    tail: bytes

    @property
    def size(self) -> int:
        """Number of bytes of the whole."""
        return len(self.head) + self.payload_size + len(self.tail)


@functools.cache
def tensor_archive(dtype: str, shape: tuple[int, ...]) -> Archive:
    """Return what `torch.save` writes of a contiguous tensor of safetensors' type `dtype`."""
    count = math.prod(shape)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    storage = _Storage(("storage", Name("torch", STORAGES[dtype]), "0", "cpu", count))
    rebuilt = Call(
        Name("torch._utils", "_rebuild_tensor_v2"),
        storage, 0, shape, tuple(strides), False, collections.OrderedDict(),
    )  # fmt: skip
    members = _Members()
    members.add("data.pkl", _pickled(rebuilt))
    members.add_format()
    members.begin("data/0", count * ITEM_BYTES[dtype])
    head = members.taken()
    members.end()
    members.close(_ID_OF_TENSOR)
    return Archive(head, count * ITEM_BYTES[dtype], members.taken())


def object_archive(value: Any) -> bytes:
    """Return what `torch.save` writes of an object without tensors."""
    members = _Members()
    members.add("data.pkl", _pickled(value))
    members.add_format()
    members.close(_ID_OF_OBJECT)
    return members.taken()


class _Storage:
    """A storage, which a pickle only refers to."""

    def __init__(self, reference: tuple[Any, ...]):
        self.reference = reference


class _ArchivePickler(Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.reference if isinstance(value, _Storage) else None


def _pickled(value: Any) -> bytes:
    content = io.BytesIO()
    _ArchivePickler(content, _PROTOCOL).dump(value)
    return content.getvalue()


class _Members:
    """Writes members of an archive one after the other, into memory; the content of one may be left out."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._place = 0
        self._directory = bytearray()
        self._count = 0
        self._open: tuple[bytes, int, int] = (b"", 0, 0)

    def add(self, name: str, content: bytes) -> None:
        """Write a member."""
        self.begin(name, len(content))
        self._write(content)
        self._place -= len(content)  # counted by `end`
        self.end()

    def add_format(self) -> None:
        """Write the members that torch writes before a tensor's."""
        self.add(".format_version", b"1")
        self.add(".storage_alignment", str(_ALIGNMENT).encode())
        self.add("byteorder", b"little")

    def begin(self, name: str, size: int) -> None:
        """Write what precedes a member's content of `size` bytes."""
        path, place = f"archive/{name}".encode(), self._place
        large = _large_fields(size, 0, place)  # the other size is in the descriptor
        fixed = 30 + len(path) + len(large) + 4
        padding = -(place + fixed) % _ALIGNMENT
        # made by no version, descriptor behind the content and names in UTF-8, stored, without date, checksum and sizes
        self._write(
            struct.pack("<IHHHIIIIHH", 0x04034B50, 0, 0x0808, 0, 0, 0, 0, 0, len(path), len(large) + 4 + padding)
        )
        self._write(path + large + b"FB" + struct.pack("<H", padding) + b"Z" * padding)
        self._open = (path, size, place)

    def end(self) -> None:
        """Write what follows a member's content, and note it for the directory."""
        path, size, place = self._open
        self._place += size
        large = _large_fields(size, size, place)
        self._write(struct.pack("<IIQQ" if large else "<IIII", 0x08074B50, 0, size, size))
        short = min(size, _LARGE)
        self._directory += struct.pack(
            "<IHHHHIIIIHHHHHII",
            0x02014B50, 0, 0, 0x0808, 0, 0, 0, short, short, len(path), len(large), 0, 0, 0, 0, min(place, _LARGE),
        )  # fmt: skip
        self._directory += path + large
        self._count += 1

    def close(self, identity: bytes) -> None:
        """Write the members that torch writes last, and the directory."""
        self.add("version", b"3\n")
        self.add(".data/serialization_id", identity)
        place, size, count = self._place, len(self._directory), self._count
        self._write(bytes(self._directory))
        end = self._place
        # made on Unix by version 3.0 of the specification, read by 4.5
        self._write(struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0x031E, 45, 0, 0, count, count, size, place))
        self._write(struct.pack("<IIQI", 0x07064B50, 0, end, 1))
        self._write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, size, min(place, _LARGE), 0))

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        content, self._bytes = bytes(self._bytes), bytearray()
        return content

    def _write(self, content: bytes) -> None:
        self._bytes += content
        self._place += len(content)


def _large_fields(size: int, stored_size: int, place: int) -> bytes:
    """Return the field for sizes and places that do not fit 32 bits; empty when they do."""
    values = ([size, stored_size] if size >= _LARGE else []) + ([place] if place >= _LARGE else [])
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values) if values else b""
