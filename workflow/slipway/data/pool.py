"""The pool: every problem of a source, read and parsed by several processes, kept on the disk in Arrow's format.

Only a few numbers a problem are ever in memory; texts are read again where they are needed.
"""

import gc
import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from numbers import Rational
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from slipway.config.schema import NearDuplicates
from slipway.data.digests import digests, normal_digests
from slipway.data.filters.near_duplicates import band_keys
from slipway.data.records import Problem, Record, UnusableError
from slipway.data.sources import Block, Source
from slipway.data.tasks import TASKS
from slipway.errors import SlipwayError
from slipway.rewards import scorer_for

FIELDS: list[tuple[str, pa.DataType]] = [
    ("file", pa.string()),
    ("place", pa.int64()),
    ("question", pa.string()),
    ("answer", pa.string()),
    ("entry", pa.string()),
    ("demonstration", pa.string()),
    ("fault", pa.string()),
    # digest of the question; its rank in the shuffled order; digest without case and white space
    ("id", pa.uint64()),
    ("order", pa.uint64()),
    ("normal", pa.uint64()),
]
# What is read at a time: so many problems, or fewer where they are long.
ROWS_AT_A_TIME = 20_000
BYTES_AT_A_TIME = 32 * 2**20
BANDS = ("bands", pa.list_(pa.uint64()))


def _rational_as_text(value: Any) -> str:
    """Return an exact fraction as text: a generator's notes hold some, and JSON would round them."""
    if isinstance(value, Rational):
        return str(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


# made once: json.dumps makes one for each call that asks for more than its defaults
_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=_rational_as_text)


class Pool:
    """Problems of one source in its order; `grow` adds more of a generator."""

    def __init__(
        self, source: Source, settings: dict[str, Any], near: NearDuplicates | None, folder: Path, processes: int
    ):
        self._source = source
        self._settings = settings
        self._near = near
        self._folder = folder
        self._processes = processes
        self._parts: list[datasets.Dataset] = []
        # the questions where they are mapped into memory, and the number of the first one of each
        self._questions: list[pa.Array] = []
        self._starts: list[int] = []
        self.unit = source.unit
        self.ability = source.ability

    def add(self, blocks: Sequence[Block]) -> None:
        """Read and parse blocks. Raises `SlipwayError` with file and place for a record that is damaged."""
        schema = pa.schema([*FIELDS, BANDS] if self._near else FIELDS)
        if not blocks:
            return
        path = self._folder / f"{len(self._parts)}.arrow"
        path.parent.mkdir(parents=True, exist_ok=True)
        processes = min(self._processes, len(blocks))
        part = datasets.Dataset.from_list([asdict(block) for block in blocks]).map(
            _examine,
            batched=True,
            batch_size=1,
            num_proc=processes,
            remove_columns=["file", "start", "stop", "first"],
            features=datasets.Features.from_arrow_schema(schema),
            cache_file_name=str(path),
            load_from_cache_file=False,
            # else it hashes the function's source, which tells nothing here
            new_fingerprint=f"pool{len(self._parts)}",
            fn_kwargs={"source": self._source, "settings": self._settings, "near": self._near, "schema": schema},
            desc=f"read {blocks[0].file}",
        )
        if "TOKENIZERS_PARALLELISM" not in os.environ:
            # `datasets` sets it for its workers, and takes it back in os.environ alone: tokenizers still read it
            os.unsetenv("TOKENIZERS_PARALLELISM")
        self._parts.append(part)
        for chunk in part.data.column("question").chunks:
            self._starts.append(self._starts[-1] + len(self._questions[-1]) if self._questions else 0)
            self._questions.append(chunk)

    def __len__(self) -> int:
        """Return the number of records, usable or not."""
        return sum(len(part) for part in self._parts)

    @property
    def text_bytes(self) -> int:
        """Bytes of all entries, which hold every text of a problem but the worked answer."""
        columns = [part.data.column("entry") for part in self._parts]
        return sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in columns)

    def numbers(self, column: str) -> NDArray[Any]:
        """Return a column of numbers."""
        parts = [part.data.column(column).to_numpy() for part in self._parts]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint64)

    def band(self, index: int, of: int) -> NDArray[np.uint64]:
        """Return one of the `of` keys by which near duplicates are found."""
        chunks = [chunk for part in self._parts for chunk in part.data.column("bands").chunks]
        keys = [chunk.flatten().to_numpy().reshape(-1, of)[:, index] for chunk in chunks]
        return np.concatenate(keys) if keys else np.zeros(0, dtype=np.uint64)

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the pool in order, with the number of each batch's first problem."""
        start = 0
        count = min(ROWS_AT_A_TIME, 1 + BYTES_AT_A_TIME * len(self) // (1 + self.text_bytes))
        for part in self._parts:
            table = part.data.table.select(columns)
            for first in range(0, len(table), count):
                # `datasets` writes it in pieces of a few rows
                (batch,) = table.slice(first, count).combine_chunks().to_batches()
                yield start + first, batch
            start += len(table)

    def row(self, index: int) -> dict[str, Any]:
        """Return one problem whole."""
        for part in self._parts:
            if index < len(part):
                found: dict[str, Any] = part[index]
                return found
            index -= len(part)
        raise IndexError(index)

    def example(self, index: int) -> tuple[str, str]:
        """Return question and worked answer, which ends in the form that the task's scorer asks for."""
        row = self.row(index)
        entry = json.loads(row["entry"])
        gold = scorer_for(entry["task"]).gold_response(entry)
        return row["question"], "\n".join(part for part in (row["demonstration"], gold) if part)

    def question(self, index: int) -> str:
        """Return the text of one question."""
        place = bisect_right(self._starts, index) - 1
        return str(self._questions[place][index - self._starts[place]].as_py())

    def where(self, index: int) -> str:
        """Return file and place of a problem, for messages."""
        row = self.row(index)
        return f"{row['file']} {self.unit} {row['place']}"


def _examine(
    block: dict[str, list[Any]],
    source: Source,
    settings: dict[str, Any],
    near: NearDuplicates | None,
    schema: pa.Schema,
) -> pa.Table:
    """Read one block, and return its problems as a table of `schema`; runs in a worker."""
    part = Block(**{key: values[0] for key, values in block.items()})
    parse, task, unit = TASKS[settings["task"]], settings["task"], source.unit
    rows = []
    with _without_collector():
        for place, values in source.read(part):
            record = Record(values, settings["columns"], part.file, place, unit)
            problem, fault = _parse(parse, record)
            entry = _entry(task, problem, record)
            if not (_is_text(entry) and _is_text(problem.demonstration or "")):
                problem, fault = (
                    Problem(_shown(record), "", {}),
                    "unparsable: half of a surrogate pair, which is no text",
                )
                # without its labels, which may be at fault
                entry = _entry(task, problem, Record({}, {}, part.file, place, unit))
            rows.append((place, problem.question, problem.answer, entry, problem.demonstration, fault))
        columns = zip(*rows, strict=True) if rows else [()] * 6
        names = ("place", "question", "answer", "entry", "demonstration", "fault")
        arrays = {name: pa.array(found, dict(FIELDS)[name]) for name, found in zip(names, columns, strict=True)}
        arrays["file"] = pa.repeat(pa.scalar(part.file), len(rows))
        arrays["id"] = pa.array(digests(arrays["question"]))
        arrays["order"] = pa.array(digests(arrays["question"], f"{settings['seed']}\n"))
        arrays["normal"] = pa.array(normal_digests(arrays["question"]))
        if near is not None:
            arrays["bands"] = band_keys(arrays["question"], near)
    return pa.table(arrays, schema=schema)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keep Python from looking for garbage in the many objects of a block, none of which is a cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _parse(parse: Any, record: Record) -> tuple[Problem, str | None]:
    try:
        problem: Problem = parse(record)
    except UnusableError as error:
        return Problem(_shown(record), "", {}), f"unparsable: {error}"
    except SlipwayError:
        raise
    except Exception as error:
        raise SlipwayError(f"{record.where}: cannot be read ({type(error).__name__}: {error})") from error
    if not problem.question.strip():
        return problem, "empty question"
    if not problem.answer.strip():
        return problem, "empty answer"
    return problem, None


def _shown(record: Record) -> str:
    text = next((value for value in record.values.values() if isinstance(value, str)), "")
    return text.encode(errors="replace").decode()


def _is_text(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entry(task: str, problem: Problem, record: Record) -> str:
    labels = record.labels()
    if not problem.metadata and not labels:
        # what the encoder below would make of it, in a third of the time
        answer, question, quoted_task = map(_JSON.encode, (problem.answer, problem.question, task))
        return f'{{"answer": {answer}, "metadata": {{}}, "question": {question}, "task": {quoted_task}}}'
    entry = {"task": task, "question": problem.question, "answer": problem.answer, "metadata": problem.metadata}
    if labels:
        entry["labels"] = labels
    try:
        return _JSON.encode(entry)
    except TypeError as error:
        raise SlipwayError(f"{record.where}: the problem does not go into JSON ({error})") from None
