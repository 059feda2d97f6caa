"""Training problems that have words of an evaluation set: so many in a row that it is no chance."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from slipway.config import schema
from slipway.data.records import Record
from slipway.data.sources import Source
from slipway.data.sources.files import open_files
from slipway.data.words import Hashes, ngrams, split_words
from slipway.errors import SlipwayError

# A table of so many bits of a hash stays in a processor's cache.
_FIRST_BITS = 22

Hit = tuple[int, str, str]
"""Place in the questions, evaluation set, and shared text."""


@dataclass(frozen=True)
class EvaluationSet:
    """The questions of an evaluation, and what to call it in messages."""

    name: str
    questions: list[str]


class Contamination:
    """The n-grams of all evaluation sets; only they are in memory."""

    def __init__(self, sets: Iterable[EvaluationSet], words: int):
        self._words = words
        self._owner: dict[int, str] = {}
        for evaluation in sets:
            hashes, _ = ngrams(pa.array(evaluation.questions, pa.string()), words)
            for value in np.unique(hashes).tolist():
                self._owner.setdefault(value, evaluation.name)
        self._hashes: Hashes = np.array(sorted(self._owner), dtype=np.uint64)
        # which first bits there are: most n-grams of a question are told apart by them, without a search
        self._first_bits = np.zeros(2**_FIRST_BITS, dtype=np.bool_)
        self._first_bits[_first_bits(self._hashes)] = True

    def hits(self, questions: pa.Array) -> Iterator[Hit]:
        """Yield each question that is contaminated."""
        hashes, offsets = ngrams(questions, self._words)
        if not len(self._hashes):
            return
        # by search in a few sorted hashes: numpy's isin would sort all of the questions'
        hit = np.flatnonzero(self._first_bits[_first_bits(hashes)])
        place = np.minimum(np.searchsorted(self._hashes, hashes[hit]), len(self._hashes) - 1)
        hit = hit[self._hashes[place] == hashes[hit]]
        owners = np.searchsorted(offsets, hit, side="right") - 1
        numbers, first = np.unique(owners, return_index=True)
        if not len(numbers):
            return
        words, starts = split_words(questions.take(pa.array(numbers)))
        for index, (number, where) in enumerate(zip(numbers.tolist(), hit[first].tolist(), strict=True)):
            start = int(starts[index]) + where - int(offsets[number])
            shared = words[start : min(start + self._words, int(starts[index + 1]))].to_pylist()
            yield number, self._owner[int(hashes[where])], " ".join(shared)


def _first_bits(hashes: Hashes) -> Hashes:
    return hashes >> np.uint64(64 - _FIRST_BITS)


def open_evaluation_file(path: str, key: str) -> Source:
    """Open a local file or a folder of them; raises `SlipwayError` when there is none."""
    source = open_files(schema.Source(path=path), key)
    if source is None:
        raise SlipwayError(f"{key}: {path!r}: no such file; give a .jsonl, .csv or .parquet file, or a folder of them")
    return source


def read_evaluation_file(path: str, column: str, key: str) -> EvaluationSet:
    """Read the questions of a local file; raises `SlipwayError` when it has none in `column`."""
    source = open_evaluation_file(path, key)
    questions = [
        Record(values, {}, block.file, place, source.unit).text(column)
        for block in source.blocks()
        for place, values in source.read(block)
    ]
    if not any(map(str.strip, questions)):
        raise SlipwayError(f"{key}: {path!r} has no text in column {column!r}")
    return EvaluationSet(Path(path).name, questions)
