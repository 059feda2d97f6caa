"""Files of a folder as memory that the system reads when it is looked at, and may drop again."""

import mmap
import threading
from pathlib import Path


class MappedFiles:
    """Maps files when they are first asked for; several threads may ask."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._files: dict[str, memoryview] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> memoryview:
        with self._lock:
            if name not in self._files:
                with (self.folder / name).open("rb") as file:
                    # ACCESS_COPY: torch wants memory that could be written to. Nobody writes, so nothing is copied.
                    self._files[name] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
            return self._files[name]
