"""Digests of many questions: which are equal, and an order that looks like chance."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3
from numpy.typing import NDArray

Digests = NDArray[np.uint64]

_SPACE = 0x20


def digests(texts: pa.Array, salt: str = "") -> Digests:
    """Return the first 64 bits of BLAKE3 of `salt` and each text, [texts]."""
    offsets, letters = _buffers(texts)
    head = salt.encode()
    if head:
        found = [blake3(head + letters[start:stop]).digest(length=8) for start, stop in pairwise(offsets.tolist())]
    else:
        found = [blake3(letters[start:stop]).digest(length=8) for start, stop in pairwise(offsets.tolist())]
    return np.frombuffer(b"".join(found), dtype=">u8").astype(np.uint64)


def normal_digests(texts: pa.Array) -> Digests:
    """Return a digest of each text, [texts], equal for texts that differ in letter case and white space alone."""
    found = digests(pc.ascii_lower(texts))
    other = np.flatnonzero(~_is_plain(texts))
    if len(other):
        normal = [" ".join(text.split()).casefold() for text in texts.take(pa.array(other)).to_pylist()]
        found[other] = digests(pa.array(normal, pa.string()))
    return found


def _is_plain(texts: pa.Array) -> NDArray[np.bool_]:
    """Tell of each text whether it is of ASCII, with no white space but single spaces between words."""
    offsets, view = _buffers(texts)
    letters = np.frombuffer(view, dtype=np.uint8)[: offsets[-1]]
    plain: NDArray[np.bool_] = pc.string_is_ascii(texts).to_numpy(zero_copy_only=False).copy()
    space = letters == _SPACE
    odd = letters < _SPACE
    odd[1:] |= space[1:] & space[:-1]
    plain[np.searchsorted(offsets, np.flatnonzero(odd), side="right") - 1] = False
    filled = np.flatnonzero(np.diff(offsets))
    plain[filled] &= ~(space[offsets[filled]] | space[offsets[filled + 1] - 1])
    return plain


def _buffers(texts: pa.Array) -> tuple[NDArray[np.int32], Any]:
    """Return where each text begins, [texts + 1], in the bytes of all."""
    texts = pa.concat_arrays([texts])  # whose buffers begin with its first text
    _, ends, letters = texts.buffers()
    if not len(texts) or letters is None:
        return np.zeros(len(texts) + 1, dtype=np.int32), memoryview(b"")
    offsets = np.frombuffer(ends, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return offsets, memoryview(letters)
