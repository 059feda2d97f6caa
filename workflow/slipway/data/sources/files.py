"""JSON lines, CSV and parquet files, alone or in a folder: read where they lie, a block at a time.

Text may be compressed. Such a file is decompressed up to each of its blocks: unpack one of gigabytes before.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from slipway.config import schema
from slipway.config.source_paths import is_of_package, source_path
from slipway.data.sources.base import Block
from slipway.errors import SlipwayError
from slipway.manifest import hash_file

SUFFIXES = (".jsonl", ".csv", ".parquet")
COMPRESSED: Mapping[str, Callable[[Path], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
# Large enough that starting a block costs nothing, small enough that a few per worker fit anywhere.
BLOCK_BYTES = 2 * 2**20
# A row group may hold a million rows; to find its later rows, the earlier ones are decoded again.
BLOCK_ROWS = 25_000
# csv's own limit of 128 KiB a field is too small for tests of programs.
LARGEST_FIELD = 2**30
_DECODE = msgspec.json.Decoder().decode


def open_files(settings: schema.Source, key: str) -> "FileSource | None":
    """Open the files at `path`; None when it can only be a hub's name, or a folder for `datasets` to read."""
    path = source_path(str(settings.path))
    _refuse_settings_of_a_hub(settings, path, key)
    if path.is_dir() and not settings.split and not settings.config:
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            return None  # saved by datasets
        found = sorted(file for file in path.rglob("*") if _kind(file) and file.is_file())
        if not found:
            raise SlipwayError(f"{key}.path: {settings.path!r} holds no {', '.join(SUFFIXES)} file")
        kinds = sorted({_kind(file) for file in found})
        if len(kinds) > 1:
            raise SlipwayError(f"{key}.path: {settings.path!r} holds {' and '.join(kinds)} files; give one kind")
        return FileSource(path, tuple(str(file.relative_to(path)) for file in found))
    if path.is_file():
        if not _kind(path):
            raise SlipwayError(f"{key}.path: {settings.path!r} is none of {', '.join(SUFFIXES)}; unpack or convert it")
        return FileSource(path.parent, (path.name,))
    if _kind(path):
        raise SlipwayError(f"{key}.path: {settings.path!r}: no such file")
    return None


def _refuse_settings_of_a_hub(settings: schema.Source, path: Path, key: str) -> None:
    """Refuse what chooses a part of a hub's data set, where it would choose nothing."""
    if not path.exists():
        return
    # a folder that `datasets` reads may have parts
    whole = path.is_file() or is_of_package(str(settings.path))
    for name in ("revision", "config", "split") if whole else ("revision",):
        if value := getattr(settings, name):
            raise SlipwayError(
                f"{key}.{name}: {value!r} belongs to a hub's data set, but {settings.path!r} lies here; leave it out"
            )


@dataclass(frozen=True)
class FileSource:
    """Files below `folder`, one after the other in the order of `files`."""

    folder: Path
    files: tuple[str, ...]
    ability: str | None = None

    @property
    def unit(self) -> str:
        """Lines of text; rows of parquet."""
        return "row" if _kind(Path(self.files[0])) == ".parquet" else "line"

    def blocks(self) -> list[Block]:
        """Cut each file between records; a text file is read once for it."""
        found: list[Block] = []
        for name in self.files:
            path = self.folder / name
            cut = {".jsonl": _runs_of_lines, ".csv": _runs_of_records, ".parquet": _runs_of_rows}[_kind(path)]
            found += cut(name, path)
        return found

    def read(self, block: Block) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield line (from 1) or row (from 0), and the record."""
        path = self.folder / block.file
        match _kind(path):
            case ".jsonl":
                return _read_jsonl(path, block)
            case ".csv":
                return _read_csv(path, block)
            case _:
                return _read_parquet(path, block)

    def identity(self) -> dict[str, Any]:
        """Return the digest of each file."""
        return {"files": {name: hash_file(self.folder / name) for name in self.files}}


def _kind(path: Path) -> str:
    """Return which of `SUFFIXES` a file is, compressed or not; empty for none."""
    packed = path.suffix in COMPRESSED
    kind = Path(path.stem).suffix if packed else path.suffix
    # parquet compresses by itself
    return kind if kind in SUFFIXES and not (packed and kind == ".parquet") else ""


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of text, decompressed; positions in it are those of the text."""
    try:
        with COMPRESSED.get(path.suffix, _plain)(path) as file:
            yield file
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault, not the file's: bz2 and gzip raise it bare for what they cannot read
        raise SlipwayError(f"{path}: not a whole {path.suffix} file ({error})") from None


def _plain(path: Path) -> IO[bytes]:
    return path.open("rb")


def _runs_of_lines(name: str, path: Path) -> Iterator[Block]:
    """Cut after the last line end of every `BLOCK_BYTES`."""
    start = position = 0
    line = lines = 1
    with _open(path) as file:
        while chunk := file.read(BLOCK_BYTES):
            lines += chunk.count(b"\n")
            end = chunk.rfind(b"\n") + 1
            if end:
                yield Block(name, start, position + end, line)
                start, line = position + end, lines
            position += len(chunk)
    if position > start:
        yield Block(name, start, position, line)


def _runs_of_records(name: str, path: Path) -> Iterator[Block]:
    """Cut between records of CSV, whose fields may hold line ends: only reading tells where one ends."""
    start = 0
    line = 1
    with _open(path) as file:
        reader = _csv(path, iter(file.readline, b""), 1)
        for _, following, _ in reader:
            # the reader has taken no line beyond the record
            if (end := file.tell()) - start >= BLOCK_BYTES:
                yield Block(name, start, end, line)
                start, line = end, following
        if (end := file.tell()) > start:
            yield Block(name, start, end, line)


def _read_jsonl(path: Path, block: Block) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(_bytes(path, block).split(b"\n"), start=block.first):
        if not line.strip():
            continue
        try:
            record = decode_json(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise SlipwayError(f"{path} line {number}: not JSON ({error}); mend or remove the line") from None
        if not isinstance(record, dict):
            raise SlipwayError(f"{path} line {number}: {type(record).__name__}, expected a JSON object a line")
        yield number, record


def decode_json(line: bytes) -> Any:
    """Return what `json.loads` does, in a fifth of its time; raises what it raises."""
    try:
        return _DECODE(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # `json` reads more: NaN, numbers beyond a float's, halves of surrogate pairs; and says what is wrong
        return json.loads(line)


def _read_csv(path: Path, block: Block) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with _open(path) as file:
        first = next(_csv(path, iter(file.readline, b""), 1), None)
    if first is None:
        raise SlipwayError(f"{path} line 1: no header of column names (empty file)")
    header = first[2]
    for line, _, row in _csv(path, iter(io.BytesIO(_bytes(path, block)).readline, b""), block.first):
        if not row or line == 1:
            continue
        if len(row) != len(header):
            raise SlipwayError(f"{path} line {line}: {len(row)} fields, but the header has {len(header)}")
        yield line, dict(zip(header, row, strict=True))


def _csv(path: Path, lines: Iterator[bytes], first: int) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the line that each record begins with, the line after it, and its fields."""
    csv.field_size_limit(LARGEST_FIELD)

    def decoded() -> Iterator[str]:
        for number, line in enumerate(lines, start=first):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise SlipwayError(f"{path} line {number}: not UTF-8 text ({error.reason})") from None

    reader = csv.reader(decoded(), strict=True)
    while True:
        line = first + reader.line_num
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise SlipwayError(f"{path} line {line}: not CSV ({error})") from None
        yield line, first + reader.line_num, row


def _read_parquet(path: Path, block: Block) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with _parquet(path) as file:
        row = 0
        try:
            for group in range(file.metadata.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if row + rows <= block.start or row >= block.stop:
                    row += rows
                    continue
                for batch in file.iter_batches(batch_size=1024, row_groups=[group]):
                    first, stop = max(row, block.start), min(row + len(batch), block.stop)
                    if first < stop:
                        yield from enumerate(batch.slice(first - row, stop - first).to_pylist(), start=first)
                    row += len(batch)
                    if row >= block.stop:
                        return
        except (pa.ArrowException, OSError) as error:
            raise SlipwayError(f"{path} row {row}: damaged ({error})") from None


def _runs_of_rows(name: str, path: Path) -> Iterator[Block]:
    with _parquet(path) as file:
        rows = file.metadata.num_rows
    for start in range(0, rows, BLOCK_ROWS):
        yield Block(name, start, min(start + BLOCK_ROWS, rows), start)


def _parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise SlipwayError(f"{path}: not a whole parquet file ({error})") from None


def _bytes(path: Path, block: Block) -> bytes:
    with _open(path) as file:
        file.seek(block.start)
        return file.read(block.stop - block.start)
