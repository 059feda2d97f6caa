"""Where a tensor's bytes lie in what `torch.save` wrote of it: a zip archive whose members are not compressed."""

import io
import struct
import zipfile
from dataclasses import dataclass

_LOCAL_HEADER = struct.Struct("<26xHH")
"""Of a member: 26 bytes, then the lengths of its name and of its extra field, which its content follows."""


@dataclass(frozen=True)
class Payload:
    """Begin and length of a tensor's bytes, from the start of the archive."""

    begin: int
    size: int


def find_payload(archive: memoryview) -> Payload:
    """Return where the only storage in an archive of `torch.save` lies; raises `ValueError` when it is none."""
    try:
        with zipfile.ZipFile(_Window(archive)) as members:
            (data,) = (member for member in members.infolist() if member.filename.endswith("/data/0"))
    except (zipfile.BadZipFile, ValueError) as error:
        raise ValueError(f"not one tensor saved by torch: {error}") from None
    if data.compress_type != zipfile.ZIP_STORED:
        raise ValueError("its content is compressed")
    name, extra = _LOCAL_HEADER.unpack_from(archive, data.header_offset)
    return Payload(data.header_offset + _LOCAL_HEADER.size + name + extra, data.file_size)


class _Window(io.RawIOBase):
    """A part of a mapped file as a file of its own: `zipfile` looks for the directory at its end."""

    def __init__(self, content: memoryview):
        self._content = content
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: len(self._content)}[whence]
        self._place = max(0, start + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        part = self._content[self._place : self._place + len(buffer)]
        buffer[: len(part)] = part
        self._place += len(part)
        return len(part)
