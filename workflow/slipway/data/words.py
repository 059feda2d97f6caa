"""Word n-grams of many texts at once, as 64-bit hashes: what near duplicates and contamination are told by."""

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Offsets = NDArray[np.int64]

# Of a polynomial modulo 2**64; odd, so that no word of an n-gram loses bits.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)

_ASCII = np.array([ord(chr(code).lower()) if chr(code).isalnum() else 32 for code in range(128)] + [32] * 128, np.uint8)


def split_words(texts: pa.Array) -> tuple[pa.Array, Offsets]:
    """Return the words of all texts, one after the other, and where each text's begin, [texts + 1].

    Words are runs of letters and digits of any script, in lower case: punctuation does not tell texts apart.
    """
    lists = pc.split_pattern(_spaced(texts), " ")
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    words = lists.flatten()
    # between two spaces, and in an empty text, there is an empty word
    empty = pc.equal(pc.binary_length(words), 0).to_numpy(zero_copy_only=False)
    if empty.any():
        lengths -= np.bincount(np.repeat(np.arange(len(lengths)), lengths)[empty], minlength=len(lengths))
        words = words.filter(pa.array(~empty))
    return words, np.concatenate([[0], np.cumsum(lengths)])


def _spaced(texts: pa.Array) -> pa.Array:
    """Return the texts in lower case, with spaces in place of all that is no letter or digit."""
    if not pc.all(pc.string_is_ascii(texts)).as_py():
        return pc.replace_substring_regex(pc.utf8_lower(texts), r"[^\p{L}\p{N}]+", " ")
    # thirty times as fast
    texts = pa.concat_arrays([texts])  # whose buffers begin with its first text
    if not len(texts):
        return texts
    _, offsets, letters = texts.buffers()
    mapped = _ASCII[np.frombuffer(letters or b"", dtype=np.uint8)]
    return pa.StringArray.from_buffers(len(texts), offsets, pa.py_buffer(mapped), offset=texts.offset)


def ngrams(texts: pa.Array, size: int) -> tuple[Hashes, Offsets]:
    """Return the n-grams of all texts as hashes, one after the other, and where each text's begin, [texts + 1].

    A text of fewer than `size` words is a single n-gram of all its words; one without a word has none.
    """
    words, starts = split_words(texts)
    hashes = _hash_words(words)
    lengths = np.diff(starts)
    counts = np.where(lengths >= size, lengths - size + 1, (lengths > 0).astype(np.int64))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    first = np.repeat(starts[:-1] - offsets[:-1], counts) + np.arange(offsets[-1])
    # of every `size` words in a row, also where a text ends: those are not asked for
    windows = max(0, len(hashes) - size + 1)
    found = _combine([hashes[step : step + windows] for step in range(size)])
    if not (lengths < size).any():
        return found[first], offsets
    found = found[np.minimum(first, windows - 1)] if windows else np.zeros(len(first), dtype=np.uint64)
    for length in range(1, size):
        short = np.flatnonzero(lengths == length)
        if len(short):
            found[offsets[short]] = _combine([hashes[starts[short] + step] for step in range(length)])
    return found, offsets


def _combine(words: list[Hashes]) -> Hashes:
    # begins with their number, so that a short text is no part of a long one by its hash
    found = np.full(len(words[0]), len(words), dtype=np.uint64)
    for word in words:
        found ^= word
        found *= _FACTOR
        found ^= found >> np.uint64(29)
    return found


def _hash_words(words: pa.Array) -> Hashes:
    # few of the words are distinct, so that hashing in Python costs little
    coded = words.dictionary_encode()
    distinct = np.array(list(map(_hash_word, coded.dictionary.to_pylist())), dtype=np.uint64)
    return distinct[coded.indices.to_numpy(zero_copy_only=False)]


@lru_cache(maxsize=100_000)
def _hash_word(word: str) -> int:
    # most words of a text are in the one before it too
    return int.from_bytes(blake3(word.encode()).digest(length=8), "big")
