"""Reading files through memory, and reserving space for them."""

import mmap
import os
from pathlib import Path

import pytest

from slipway.convert.mapped_files import MappedFiles
from slipway.convert.reservation import reserve
from slipway.errors import SlipwayError

CONTENT = os.urandom(5 * 2**20 + 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(CONTENT)
    return tmp_path


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (1, len(CONTENT)), (4095, 4097), (2**20 + 7, 2**22 + 9), (5, 5)])
def test_a_part_is_what_the_file_has_there(folder: Path, begin: int, end: int) -> None:
    assert MappedFiles(folder).read("file", begin, end) == CONTENT[begin:end]


def test_a_file_that_is_cut_off_meanwhile_is_an_error_and_no_crash(folder: Path) -> None:
    files = MappedFiles(folder)
    assert files.read("file", 0, 10) == CONTENT[:10]
    os.truncate(folder / "file", mmap.PAGESIZE)
    with pytest.raises(SlipwayError, match=r"file: bytes 1000000 to 2000000 cannot be read"):
        files.read("file", 1_000_000, 2_000_000)


@pytest.mark.parametrize("size", [0, 1, 2**20])
def test_reserved_space_belongs_to_the_file(tmp_path: Path, size: int) -> None:
    with (tmp_path / "file").open("wb") as file:
        reserve(file.fileno(), size)
        status = os.fstat(file.fileno())
    assert status.st_size == size
    assert status.st_blocks * 512 >= size


def test_what_cannot_be_reserved_is_an_error(folder: Path) -> None:
    with (folder / "file").open("rb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        reserve(file.fileno(), 10)
    with (folder / "file").open("wb") as file, pytest.raises(OSError, match=r"No space left|File too large"):
        reserve(file.fileno(), 2**60)
