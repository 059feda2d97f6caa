"""Files that are either whole or absent: atomic writes, and content hashes."""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blake3 import blake3


@contextmanager
def atomic_path(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success fsync it and rename it to `path`.

    Until then nobody else may read it; then it has `mode`, less the umask. An exception leaves `path` as it was and
    removes the temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(mode & ~_umask())
        temporary.replace(path)
        sync_path(path.parent)
    except OSError as error:
        # a write that fails for want of space does not say where
        error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Write `text` to `path` atomically; `mode`, less the umask, holds from the first byte on."""
    with atomic_path(path, mode) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_if_changed(path: Path, text: str) -> bool:
    """Write `text` to `path` atomically unless it is there already; return whether it was written.

    Keeps the modification time of unchanged files, by which Snakemake decides what to run again.
    """
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    write_text(path, text)
    return True


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sync_path(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def syncing(paths: Iterable[Path]) -> Iterator[None]:
    """Force files to the disk while the caller works on; at the end they are there.

    Raises `OSError` for what the disk refused.
    """
    with ThreadPoolExecutor(1) as pool:
        waiting = [pool.submit(sync_path, path) for path in paths]
        yield
        for done in waiting:
            done.result()


def hash_file(path: Path) -> str:
    """Return the BLAKE3 digest of a file's bytes, in hexadecimal."""
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()


@contextmanager
def hashing(paths: Iterable[Path]) -> Iterator[dict[Path, str]]:
    """Hash files, to which nobody writes any more, while the caller works on.

    Yields their BLAKE3 digests by path, which are there at the end. Raises `OSError` for what cannot be read.
    """
    digests: dict[Path, str] = {}
    with ThreadPoolExecutor(1) as pool:
        waiting = {path: pool.submit(hash_file, path) for path in paths}
        yield digests
        digests.update({path: done.result() for path, done in waiting.items()})


def fingerprint(value: Any) -> str:
    """Return a digest of a JSON value that does not depend on the order of its keys."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return blake3(canonical.encode()).hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
