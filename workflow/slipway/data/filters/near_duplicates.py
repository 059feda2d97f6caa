"""Near duplicates: MinHash finds pairs that may be alike, their n-grams decide.

A similarity of 0.8 is found with a probability above 0.99, one of 0.7 above 0.9; nothing below the limit is left out.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise, starmap
from struct import Struct

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rensa import RMinHash

from slipway.config.schema import NearDuplicates
from slipway.data.words import ngrams

BANDS, ROWS = 21, 6
SEED = 1
# Problems that one of a bucket is compared with; a text that all of a bucket is alike to is one of the first.
COMPARED = 8
# Problems whose n-grams are made at a time: enough that making them one by one is not what takes the time.
AT_A_TIME = 4096

_SKETCH = Struct(f"={BANDS * ROWS}I")
_MIX = np.uint64(0x9E3779B97F4A7C15)


def band_keys(questions: pa.Array, settings: NearDuplicates) -> pa.Array:
    """Return `BANDS` keys for each question; two that share one may be near duplicates."""
    hashes, offsets = ngrams(questions, settings.words)
    # a question without a word is like no other
    used = np.flatnonzero(np.diff(offsets) > 0)
    keys = np.zeros((len(questions), BANDS), dtype=np.uint64)
    if len(used):
        rows = np.concatenate([offsets[used], offsets[-1:]]).astype(np.uint64)
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(hashes, rows, BANDS * ROWS, SEED)
        # 32 bits each; through bytes, which takes half the time of an array made of lists
        flat = np.frombuffer(b"".join(starmap(_SKETCH.pack, matrix.to_rows())), dtype=np.uint32)
        sketch = flat.astype(np.uint64).reshape(len(used), BANDS, ROWS)
        mixed = np.broadcast_to(np.arange(1, BANDS + 1, dtype=np.uint64), (len(used), BANDS))
        for row in range(ROWS):
            mixed = (mixed ^ sketch[:, :, row]) * _MIX
            mixed = mixed ^ (mixed >> np.uint64(31))
        keys[used] = mixed
    ends = np.arange(0, (len(questions) + 1) * BANDS, BANDS, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(keys.reshape(-1)))


def find(
    band: Callable[[int], NDArray[np.uint64]],
    text: Callable[[int], str],
    usable: NDArray[np.bool_],
    settings: NearDuplicates,
) -> dict[int, tuple[int, float]]:
    """Return near duplicates: problem -> the earlier problem that it is like, and how much.

    `band(i)` gives the keys of band `i`, `text(n)` the question of problem `n`. Both problems are usable.
    """
    candidates = np.flatnonzero(usable)
    found: dict[int, tuple[int, float]] = {}
    for index in range(BANDS):
        candidates = candidates[~np.isin(candidates, list(found))]
        buckets: list[list[int]] = []
        waiting = 0
        for bucket in _buckets(band(index)[candidates]):
            if len(left := [number for number in candidates[bucket].tolist() if number not in found]) > 1:
                buckets.append(left)
                waiting += len(left)
            if waiting >= AT_A_TIME:
                _compare(buckets, text, settings, found)
                buckets, waiting = [], 0
        _compare(buckets, text, settings, found)
    return found


def _buckets(keys: NDArray[np.uint64]) -> Iterator[NDArray[np.int64]]:
    """Yield the places of each key that occurs more than once, in the order of keys, and of places."""
    ordered = np.sort(keys)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    repeated = repeated[repeated > 0]
    if not len(repeated):
        return
    # few keys are: looking them up takes less than sorting all places
    group = np.minimum(np.searchsorted(repeated, keys), len(repeated) - 1)
    places = np.flatnonzero(repeated[group] == keys)
    places = places[np.argsort(group[places], kind="stable")]
    sizes = np.bincount(group[places], minlength=len(repeated))
    yield from np.split(places, np.cumsum(sizes)[:-1])


def _compare(
    buckets: list[list[int]], text: Callable[[int], str], settings: NearDuplicates, found: dict[int, tuple[int, float]]
) -> None:
    numbers = [number for bucket in buckets for number in bucket]
    hashes, offsets = ngrams(pa.array(list(map(text, numbers)), pa.string()), settings.words)
    sets = (set(hashes[start:stop].tolist()) for start, stop in pairwise(offsets.tolist()))
    for bucket in buckets:
        _compare_bucket(bucket, sets, settings, found)


def _compare_bucket(
    bucket: list[int], sets: Iterator[set[int]], settings: NearDuplicates, found: dict[int, tuple[int, float]]
) -> None:
    """Compare the problems of a bucket, whose n-grams are the next of `sets`."""
    kept: list[tuple[int, set[int]]] = []
    for number in bucket:
        grams = next(sets)
        for other, others in kept:
            similarity = len(grams & others) / len(grams | others)
            if similarity >= settings.similarity:
                found[number] = (other, round(similarity, 3))
                break
        else:
            if len(kept) < COMPARED:
                kept.append((number, grams))
