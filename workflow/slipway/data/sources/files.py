"""JSON lines, CSV and parquet files, alone or in a folder: read where they lie, a block at a time."""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slipway.config import schema
from slipway.data.sources.base import Block
from slipway.errors import SlipwayError
from slipway.manifest import hash_file

SUFFIXES = (".jsonl", ".csv", ".parquet")
# Large enough that starting a block costs nothing, small enough that a few per worker fit anywhere.
BLOCK_BYTES = 2 * 2**20
# csv's own limit of 128 KiB a field is too small for tests of programs.
LARGEST_FIELD = 2**30


def open_files(settings: schema.Source, key: str) -> "FileSource | None":
    """Open the files at `path`; None when it can only be a hub's name, or a folder for `datasets` to read."""
    path = Path(str(settings.path)).expanduser()
    if path.is_dir() and not settings.split and not settings.config:
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            return None  # saved by datasets
        found = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        if not found:
            raise SlipwayError(f"{key}.path: {settings.path!r} holds no {', '.join(SUFFIXES)} file")
        return FileSource(path, tuple(str(file.relative_to(path)) for file in found))
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise SlipwayError(f"{key}.path: {settings.path!r} is none of {', '.join(SUFFIXES)}; unpack or convert it")
        return FileSource(path.parent, (path.name,))
    if path.suffix in SUFFIXES:
        raise SlipwayError(f"{key}.path: {settings.path!r}: no such file")
    return None


@dataclass(frozen=True)
class FileSource:
    """Files below `folder`, one after the other in the order of `files`."""

    folder: Path
    files: tuple[str, ...]
    ability: str | None = None

    @property
    def unit(self) -> str:
        """Lines of text; rows of parquet."""
        return "row" if self.files[0].endswith(".parquet") else "line"

    def blocks(self) -> list[Block]:
        """Cut each file between records; a text file is read once for it."""
        found: list[Block] = []
        for name in self.files:
            path = self.folder / name
            if path.suffix == ".parquet":
                found += _row_groups(name, path)
            else:
                found += _runs_of_lines(name, path, quoted=path.suffix == ".csv")
        return found

    def read(self, block: Block) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield line (from 1) or row (from 0), and the record."""
        path = self.folder / block.file
        match path.suffix:
            case ".jsonl":
                return _read_jsonl(path, block)
            case ".csv":
                return _read_csv(path, block)
            case _:
                return _read_parquet(path, block)

    def identity(self) -> dict[str, Any]:
        """Return the digest of each file."""
        return {"files": {name: hash_file(self.folder / name) for name in self.files}}


def _runs_of_lines(name: str, path: Path, quoted: bool) -> Iterator[Block]:
    """Cut after the last line end of every `BLOCK_BYTES`; with `quoted`, line ends in quotes do not count."""
    start = position = 0
    line = lines = 1
    quotes = 0
    with path.open("rb") as file:
        while chunk := file.read(BLOCK_BYTES):
            text = np.frombuffer(chunk, dtype=np.uint8)
            ends = np.flatnonzero(text == ord("\n"))
            between = ends
            if quoted:
                marks = np.cumsum(text == ord('"')) + quotes
                between = ends[marks[ends] % 2 == 0]
                quotes = int(marks[-1] % 2)
            if len(between):
                cut = position + int(between[-1]) + 1
                yield Block(name, start, cut, line)
                start, line = cut, lines + int(np.searchsorted(ends, between[-1])) + 1
            position += len(chunk)
            lines += len(ends)
    if position > start:
        yield Block(name, start, position, line)


def _read_jsonl(path: Path, block: Block) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(_bytes(path, block).split(b"\n"), start=block.first):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise SlipwayError(f"{path} line {number}: not JSON ({error}); mend or remove the line") from None
        if not isinstance(record, dict):
            raise SlipwayError(f"{path} line {number}: {type(record).__name__}, expected a JSON object a line")
        yield number, record


def _read_csv(path: Path, block: Block) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(LARGEST_FIELD)
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            header = next(csv.reader(file, strict=True))
        except (StopIteration, csv.Error, UnicodeDecodeError) as error:
            raise SlipwayError(f"{path} line 1: no header of column names ({error or 'empty file'})") from None
    try:
        text = _bytes(path, block).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = block.first + _bytes(path, block)[: error.start].count(b"\n")
        raise SlipwayError(f"{path} line {line}: not UTF-8 text ({error.reason})") from None
    reader = csv.reader(_lines(text), strict=True)
    while True:
        line = block.first + reader.line_num
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise SlipwayError(f"{path} line {line}: not CSV ({error})") from None
        if not row or line == 1:
            continue
        if len(row) != len(header):
            raise SlipwayError(f"{path} line {line}: {len(row)} fields, but the header has {len(header)}")
        yield line, dict(zip(header, row, strict=True))


def _read_parquet(path: Path, block: Block) -> Iterator[tuple[int, Mapping[str, Any]]]:
    first = block.first
    with _parquet(path) as file:
        try:
            for batch in file.iter_batches(batch_size=1024, row_groups=[block.start]):
                yield from enumerate(batch.to_pylist(), start=first)
                first += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise SlipwayError(f"{path} row group {block.start}: damaged ({error})") from None


def _row_groups(name: str, path: Path) -> Iterator[Block]:
    with _parquet(path) as file:
        first = 0
        for group in range(file.metadata.num_row_groups):
            yield Block(name, group, group + 1, first)
            first += file.metadata.row_group(group).num_rows


def _parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise SlipwayError(f"{path}: not a whole parquet file ({error})") from None


def _lines(text: str) -> Iterator[str]:
    # str.splitlines also splits at characters that are no line ends to csv
    return (line + "\n" for line in text.removesuffix("\n").split("\n"))


def _bytes(path: Path, block: Block) -> bytes:
    with path.open("rb") as file:
        file.seek(block.start)
        return file.read(block.stop - block.start)
