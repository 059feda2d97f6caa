"""Digests of many questions: which are equal, and an order that looks like chance."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3
from numpy.typing import NDArray

from slipway.data.text_buffers import text_buffers

Digests = NDArray[np.uint64]

_SPACE = 0x20


def digests(texts: pa.Array, salt: str = "") -> Digests:
    """Return the first 64 bits of BLAKE3 of `salt` and each text, [texts]."""
    offsets, letters = text_buffers(texts)
    head, content = salt.encode(), memoryview(letters)
    found = [blake3(head + content[start:stop]).digest(length=8) for start, stop in pairwise(offsets.tolist())]
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
    offsets, content = text_buffers(texts)
    letters = np.frombuffer(content, dtype=np.uint8)[: offsets[-1]]
    plain: NDArray[np.bool_] = pc.string_is_ascii(texts).to_numpy(zero_copy_only=False).copy()
    space = letters == _SPACE
    odd = letters < _SPACE
    odd[1:] |= space[1:] & space[:-1]
    plain[np.searchsorted(offsets, np.flatnonzero(odd), side="right") - 1] = False
    filled = np.flatnonzero(np.diff(offsets))
    plain[filled] &= ~(space[offsets[filled]] | space[offsets[filled + 1] - 1])
    return plain
