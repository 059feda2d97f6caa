"""Files of a folder as memory that the system reads when it is looked at, and may drop again."""

import ctypes
import errno
import mmap
import os
import threading
from pathlib import Path

import numpy as np

from slipway.errors import SlipwayError

# Of Linux 5.14; Python has no name for it, and its own madvise() would stop all other threads.
_MADV_POPULATE_READ = 22
# Meanwhile no other thread can start, or get memory from the system.
_STEP_BYTES = 2**22

_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class MappedFiles:
    """Maps files when they are first asked for; several threads may ask."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._files: dict[str, mmap.mmap | bytes] = {}
        self._lock = threading.Lock()

    def read(self, name: str, begin: int, end: int) -> memoryview:
        """Return bytes `begin` to `end` of a file; raises `SlipwayError` when the system cannot read them."""
        with self._lock:
            if name not in self._files:
                self._files[name] = _mapped(self.folder / name)
            mapped = self._files[name]
        if end > len(mapped):
            raise SlipwayError(
                f"{self.folder / name}: has {len(mapped)} bytes, but those from {begin} to {end} are wanted; it was "
                "cut off meanwhile"
            )
        content = memoryview(mapped)[begin:end]
        fault = _bring_in(content)
        if fault:
            raise SlipwayError(
                f"{self.folder / name}: bytes {begin} to {end} cannot be read ({os.strerror(fault)}); either the file "
                "was cut off meanwhile, or the disk is damaged"
            )
        return content


def _mapped(path: Path) -> mmap.mmap | bytes:
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return b""  # which cannot be mapped
            # ACCESS_COPY: torch wants memory that could be written to. Nobody writes, so nothing is copied.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        hint = "; its file system cannot map files: copy it to another" if error.errno == errno.ENODEV else ""
        raise SlipwayError(f"{path}: cannot be read ({error.strerror}){hint}") from None


def _bring_in(content: memoryview) -> int:
    """Map the pages of a part: half of the time of a copy would go into a fault for each few of them.

    Returns the system's error number, or 0.
    """
    begin: int = np.frombuffer(content, np.uint8).ctypes.data
    end = begin + len(content)
    first = begin - begin % mmap.PAGESIZE
    _madvise(first, end - first, mmap.MADV_WILLNEED)  # or what is not in memory would be read in small bits
    for place in range(first, end, _STEP_BYTES):
        if _madvise(place, min(_STEP_BYTES, end - place), _MADV_POPULATE_READ):
            number = ctypes.get_errno()
            return 0 if number == errno.EINVAL else number  # an older system
    return 0
