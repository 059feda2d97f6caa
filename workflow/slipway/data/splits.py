"""Splits without a question in two of them: made so, and checked so."""

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from slipway.config.schema import Data
from slipway.data.candidates import Candidates, Numbers
from slipway.errors import SlipwayError

Shares = list[dict[str, int]]
"""Problems of each source in each split."""


def share_out(data: Data) -> Shares:
    """Return how many problems of each source go to each split: by weight, the largest remainders rounded up."""
    sizes = {"heldout": data.heldout, "warmup": data.warmup, "train": data.train}
    weights = np.array([source.weight for source in data.sources])
    found: Shares = [{} for _ in data.sources]
    for name, size in sizes.items():
        exact = size * weights / weights.sum()
        counts = np.floor(exact).astype(int)
        for source in np.argsort(counts - exact, kind="stable")[: size - counts.sum()]:
            counts[source] += 1
        for source, count in enumerate(counts.tolist()):
            found[source][name] = count
    return found


def hold_out(candidates: Candidates, shares: Shares, generated: bool) -> tuple[Numbers, list[int]]:
    """Choose the held-out problems; return them, and how many usable problems each source lacks in all.

    The choice is by a hash of seed and question: it depends on the questions alone, and on no filter of training. Of
    a generator only the first so many problems count, since it could always make more.
    """
    chosen, lacking = [], []
    for source, share in enumerate(shares):
        usable, wanted = candidates.usable_of(source), sum(share.values())
        lacking.append(max(0, wanted - len(usable)))
        if generated:
            usable = usable[:wanted]
        chosen.append(_by_order(candidates, usable)[: share["heldout"]])
    return _by_order(candidates, np.concatenate(chosen)), lacking


def deal(
    candidates: Candidates, heldout: Numbers, shares: Shares, generated: bool
) -> tuple[dict[str, Numbers], list[int]]:
    """Deal what is usable and not held out; return the problems of each split, and how many each source lacks."""
    dealt: dict[str, list[Numbers]] = {"warmup": [], "train": []}
    lacking = []
    held = np.zeros(len(candidates.order), dtype=bool)
    held[heldout] = True
    for source, share in enumerate(shares):
        usable = candidates.usable_of(source)
        usable = usable[~held[usable]]
        wanted = share["warmup"] + share["train"]
        lacking.append(max(0, wanted - len(usable)))
        ordered = _by_order(candidates, usable[:wanted] if generated else usable)
        dealt["warmup"].append(ordered[: share["warmup"]])
        dealt["train"].append(ordered[share["warmup"] : wanted])
    splits = {"heldout": heldout} | {
        name: _by_order(candidates, np.concatenate(parts)) for name, parts in dealt.items()
    }
    return {name: numbers for name, numbers in splits.items() if len(numbers)}, lacking


def check_splits(ids: Mapping[str, NDArray[np.uint64]]) -> dict[str, int]:
    """Check that no question is twice in one split or in two splits; return the number shared by each pair: all 0.

    `ids` maps each split to the ids of its questions, as read back from the files. Raises `SlipwayError` that names
    the splits and one shared question.
    """
    ordered = {name: np.sort(values) for name, values in ids.items()}
    for name, values in ordered.items():
        twice = np.flatnonzero(values[1:] == values[:-1])
        if len(twice):
            raise SlipwayError(f"split {name} holds a question more than once, e.g. {values[twice[0]]:016x}")
    found = {}
    for one, other in combinations(ordered, 2):
        # by search of the fewer in the more: numpy's intersect1d would copy and sort both
        few, many = sorted((ordered[one], ordered[other]), key=len)
        shared = few[many[np.minimum(np.searchsorted(many, few), len(many) - 1)] == few]
        if len(shared):
            raise SlipwayError(
                f"splits {one} and {other} share {len(shared)} questions, e.g. {shared[0]:016x}: "
                "held-out accuracy would be worthless"
            )
        found[f"{one}/{other}"] = 0
    return found


def read_ids(path: Path) -> NDArray[np.uint64]:
    """Return the question ids of a parquet file that prepare_data wrote, as the numbers that they spell."""
    with pq.ParquetFile(path) as file:
        ids = np.empty(file.metadata.num_rows, dtype=np.uint64)
        start = 0
        for batch in file.iter_batches(columns=["extra_info.question_id"]):
            texts = batch.column("extra_info").field(0).to_pylist()
            ids[start : start + len(texts)] = [int(text, 16) for text in texts]
            start += len(texts)
    return ids


def _by_order(candidates: Candidates, numbers: Numbers) -> Numbers:
    ordered: Numbers = numbers[np.argsort(candidates.order[numbers], kind="stable")].astype(np.int64)
    return ordered
