"""Tensors as bits: whether two are the same, whether all elements are finite. At the speed of memory.

A tensor is an array of unsigned integers of its elements' size, since numpy has no bfloat16; its type is apart, by
safetensors' name.
"""

import ctypes
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

Bits = NDArray[np.unsignedinteger]

KINDS: dict[str, type[np.unsignedinteger]] = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32}
"""Integers of the same size, by type."""
# infinity's bits
_INFINITY = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}
# What fits a processor's cache beside what it is compared with.
_BLOCK_BYTES = 2**21

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


@dataclass(frozen=True)
class Facts:
    """Of a tensor's bytes: their BLAKE3 digest in hexadecimal, and whether all elements are finite."""

    digest: str
    finite: bool


def same_bits(left: Bits, right: Bits) -> bool:
    """Return whether two arrays have the same elements bit by bit, whatever their shapes."""
    ours, theirs = np.ascontiguousarray(left), np.ascontiguousarray(right)
    return ours.nbytes == theirs.nbytes and _memcmp(ours.ctypes.data, theirs.ctypes.data, ours.nbytes) == 0


def all_finite(bits: Bits, dtype: str) -> bool:
    """Return whether no element is infinite or undefined: none has all bits of its exponent set."""
    flat = np.ascontiguousarray(bits).reshape(-1)
    count = _BLOCK_BYTES // flat.itemsize
    return all(_is_finite(flat[start : start + count], dtype) for start in range(0, len(flat), count))


def facts_of(bits: Bits, dtype: str, expected: Bits) -> Facts | None:
    """Return digest and finiteness of `bits`; None when they are not those of `expected`, bit by bit.

    Goes through memory once, in blocks that stay in the processor's cache for all three.
    """
    if bits.nbytes != expected.nbytes:
        return None
    flat, other = np.ascontiguousarray(bits).reshape(-1), np.ascontiguousarray(expected)
    content, ours, theirs = flat.view(np.uint8).data, flat.ctypes.data, other.ctypes.data
    digest, finite = blake3(), True
    for start in range(0, len(content), _BLOCK_BYTES):
        end = min(start + _BLOCK_BYTES, len(content))
        if _memcmp(ours + start, theirs + start, end - start):
            return None
        digest.update(content[start:end])
        finite = finite and _is_finite(flat[start // flat.itemsize : end // flat.itemsize], dtype)
    return Facts(digest.hexdigest(), finite)


def _is_finite(block: Bits, dtype: str) -> bool:
    infinity, signed = _INFINITY[dtype], np.dtype(f"i{block.itemsize}")
    minus_infinity = infinity | 1 << (8 * block.itemsize - 1)
    # as signed integers all negative numbers are below zero, as unsigned ones all are above the positive
    return int(block.view(signed).max()) < infinity and int(block.max()) < minus_infinity
