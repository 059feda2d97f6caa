"""All problems of all sources as numbers: what is left out and why, and which split the others go to."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from slipway.config.schema import Data, NearDuplicates
from slipway.data.filters import duplicates, near_duplicates
from slipway.data.filters.contamination import Contamination, Hit
from slipway.data.filters.lengths import PromptLengths
from slipway.data.pool import Pool
from slipway.data.side_by_side import in_order

Numbers = NDArray[np.int64]

# What is left out of every split, in the order in which it is looked for; then what is left out of training alone.
UNPARSABLE, EMPTY_QUESTION, EMPTY_ANSWER = "unparsable", "empty question", "empty answer"
DUPLICATE, NEAR_DUPLICATE, TOO_LONG = "duplicate question", "near duplicate", "prompt too long"
CONTAMINATED, PASS_RATE = "contaminated", "pass rate"
REASONS = (
    "",
    *(UNPARSABLE, EMPTY_QUESTION, EMPTY_ANSWER, DUPLICATE, NEAR_DUPLICATE, TOO_LONG, CONTAMINATED, PASS_RATE),
)

# Problems whose pass rates are looked up at a time.
AT_A_TIME = 100_000
# Of the search for long and for contaminated problems: part of it holds the interpreter's lock, so that more would gain
# little, and each has a batch's words in memory.
THREADS = 2


class Candidates:
    """The problems of `pools`, numbered through; `reason` is an index into `REASONS`, 0 for what is usable."""

    def __init__(self, pools: Sequence[Pool]):
        self.pools = pools
        self.starts = np.cumsum([0, *map(len, pools)])
        self.id = np.concatenate([pool.numbers("id") for pool in pools])
        self.order = np.concatenate([pool.numbers("order") for pool in pools])
        self.reason = np.zeros(len(self.order), dtype=np.uint8)
        self.detail: dict[int, str] = {}
        # what most reasons are told by: numbers, which are put in words only when they are written
        self.measure = np.full(len(self.order), np.nan)
        self.original = np.full(len(self.order), -1, dtype=np.int64)
        self.examples: list[int] = []

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield all problems in order, with the number of each batch's first one."""
        for pool, start in zip(self.pools, self.starts[:-1].tolist(), strict=True):
            for first, batch in pool.batches(columns):
                yield start + first, batch

    def where(self, number: int) -> str:
        """Return file and place of a problem."""
        return self.pools[self.source_of(number)].where(number - int(self.starts[self.source_of(number)]))

    def source_of(self, number: int) -> int:
        """Return which source a problem is from."""
        return int(np.searchsorted(self.starts, number, side="right")) - 1

    def question(self, number: int) -> str:
        """Return the text of one question."""
        source = self.source_of(number)
        return self.pools[source].question(number - int(self.starts[source]))

    def usable_of(self, source: int) -> Numbers:
        """Return the usable problems of a source, in its order; examples are none."""
        start, stop = self.starts[source], self.starts[source + 1]
        numbers = start + np.flatnonzero(self.reason[start:stop] == 0)
        return np.setdiff1d(numbers, self.examples, assume_unique=True) if self.examples else numbers

    def counts(self) -> dict[str, int]:
        """Return how many were left out, by reason."""
        found = np.bincount(self.reason, minlength=len(REASONS)).tolist()
        return {REASONS[code]: count for code, count in enumerate(found) if code and count}

    def contaminated(self) -> list[int]:
        """Return the problems that share text with an evaluation."""
        found: list[int] = np.flatnonzero(self.reason == REASONS.index(CONTAMINATED)).tolist()
        return found

    def since_last_usable(self, source: int) -> int:
        """Return how many problems of a source came after its last usable one."""
        usable = self.usable_of(source)
        last = int(usable[-1]) + 1 if len(usable) else int(self.starts[source])
        return int(self.starts[source + 1]) - last

    def reject(self, number: int, reason: str, measure: float = np.nan) -> None:
        """Leave a problem out; `measure` is what the reason is told by."""
        self.reason[number] = REASONS.index(reason)
        self.measure[number] = measure

    def explain(self, number: int, fault: str | None) -> str:
        """Return why a problem was left out, beyond the reason; `fault` is what its pool says of it."""
        reason, measure = REASONS[self.reason[number]], float(self.measure[number])
        original = int(self.original[number])
        parts = [f"of {int(self.id[original]):016x}"] if original >= 0 else []
        if reason == UNPARSABLE:
            parts.append((fault or "").partition(": ")[2])
        elif reason == NEAR_DUPLICATE:
            parts.append(f"similarity {measure}")
        elif reason == TOO_LONG:
            parts.append(f"{measure:.0f} tokens")
        elif reason == CONTAMINATED:
            parts.append(self.detail[number])
        elif reason == PASS_RATE:
            parts.append("not in the evaluation" if np.isnan(measure) else f"{measure:g}")
        return ", ".join(parts)

    # -- filters of every split ----------------------------------------------------------------------------
    def leave_out_faulty(self) -> None:
        """Leave out what makes no problem: empty and unparsable ones."""
        for start, batch in self.batches(["fault"]):
            faults = batch.column("fault")
            for place in pc.indices_nonzero(faults.is_valid()).to_pylist():
                self.reject(start + place, faults[place].as_py().partition(": ")[0])

    def leave_out_duplicates(self) -> None:
        """Leave out repeated questions."""
        normal = np.concatenate([pool.numbers("normal") for pool in self.pools])
        repeats, originals = duplicates.find(normal, self.reason == 0)
        self.reason[repeats] = REASONS.index(DUPLICATE)
        self.original[repeats] = originals

    def leave_out_near_duplicates(self, settings: NearDuplicates) -> None:
        """Leave out questions that are nearly another."""

        def band(index: int) -> NDArray[np.uint64]:
            return np.concatenate([pool.band(index, near_duplicates.BANDS) for pool in self.pools])

        found = near_duplicates.find(band, self.question, self.reason == 0, settings)
        for number, (other, similarity) in found.items():
            self.reject(number, NEAR_DUPLICATE, similarity)
            self.original[number] = other

    def leave_out_long(self, lengths: PromptLengths) -> None:
        """Leave out prompts above the limit."""

        def look(batch: tuple[int, pa.RecordBatch]) -> tuple[Numbers, list[tuple[int, int]]]:
            start, questions = batch[0], batch[1].column("question")
            usable = np.flatnonzero(self.reason[start : start + len(questions)] == 0)
            return start + usable, list(lengths.too_long(questions.take(pa.array(usable))))

        for numbers, found in in_order(look, self.batches(["question"]), THREADS):
            for place, tokens in found:
                self.reject(int(numbers[place]), TOO_LONG, tokens)

    # -- filters of training -------------------------------------------------------------------------------
    def leave_out_contaminated(self, contamination: Contamination, heldout: Numbers) -> None:
        """Leave out of training what shares text with an evaluation; the held-out questions themselves stay."""
        protected = np.zeros(len(self.reason), dtype=bool)
        protected[heldout] = True

        def look(batch: tuple[int, pa.RecordBatch]) -> tuple[int, list[Hit]]:
            return batch[0], list(contamination.hits(batch[1].column("question")))

        for start, hits in in_order(look, self.batches(["question"]), THREADS):
            for place, name, text in hits:
                if self.reason[start + place] == 0 and not protected[start + place]:
                    self.reject(start + place, CONTAMINATED)
                    self.detail[start + place] = f"shares with {name}: {text}"

    def leave_out_by_pass_rate(self, rates: Mapping[int, float], data: Data, heldout: Numbers) -> None:
        """Leave out of training what an evaluated model solves too often, too seldom, or was not asked."""
        settings = data.filters.pass_rate
        assert settings is not None
        usable = self.reason == 0
        usable[heldout] = False
        asked = np.array(sorted(rates), dtype=np.uint64)
        known = np.array([rates[question] for question in asked.tolist()])
        for start in range(0, len(usable), AT_A_TIME):
            ids = self.id[start : start + AT_A_TIME]
            place = np.minimum(np.searchsorted(asked, ids), len(asked) - 1)
            measured = asked[place] == ids
            rate = np.where(measured, known[place], np.nan)
            kept = (settings.min <= rate) & (rate <= settings.max)
            if settings.unmeasured != "reject":
                kept |= ~measured
            out = np.flatnonzero(usable[start : start + AT_A_TIME] & ~kept)
            self.reason[start + out] = REASONS.index(PASS_RATE)
            self.measure[start + out] = rate[out]
