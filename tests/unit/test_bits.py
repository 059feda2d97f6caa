"""Tensors as bits."""

import numpy as np
import pytest
import torch
from blake3 import blake3

from slipway.convert.bits import Facts, all_finite, facts_of, same_bits

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
UNSIGNED = {"BF16": torch.uint16, "F16": torch.uint16, "F32": torch.uint32}


def bits(tensor: torch.Tensor, dtype: str) -> np.ndarray:
    return tensor.to(DTYPES[dtype]).view(UNSIGNED[dtype]).numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), -float("nan")])
@pytest.mark.parametrize("place", [0, 7, 2**17, 2**19, 2**20 + 4])
def test_one_element_that_is_not_finite_is_noticed(dtype: str, value: float, place: int) -> None:
    limits = torch.finfo(DTYPES[dtype])
    tensor = torch.zeros(2**20 + 5)
    tensor[1], tensor[2], tensor[3] = limits.max, limits.min, -0.0
    assert all_finite(bits(tensor, dtype), dtype)
    tensor[place] = value
    assert not all_finite(bits(tensor, dtype), dtype)
    assert not all_finite(bits(-tensor, dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_of_one_sign_are_finite(dtype: str) -> None:
    for value in (torch.finfo(DTYPES[dtype]).max, torch.finfo(DTYPES[dtype]).min):
        assert all_finite(bits(torch.full((5,), value), dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_compared_not_values(dtype: str) -> None:
    zero, nan = bits(torch.zeros(5), dtype), bits(torch.full((5,), float("nan")), dtype)
    assert same_bits(nan, nan.copy())
    assert same_bits(zero, zero.reshape(1, 5))
    assert not same_bits(zero, bits(-torch.zeros(5), dtype))
    assert not same_bits(zero, zero[:4])
    changed = zero.copy()
    changed[-1] = 1
    assert not same_bits(zero, changed)


def test_a_tensor_that_does_not_lie_in_a_row_is_read_as_it_reads() -> None:
    array = np.arange(6, dtype=np.uint32).reshape(2, 3)
    assert same_bits(array.T, np.array([0, 3, 1, 4, 2, 5], np.uint32))


@pytest.mark.parametrize("size", [1, 2**18 - 1, 2**18, 2**19 + 3])
def test_facts_are_those_of_the_whole_and_any_difference_is_noticed(size: int) -> None:
    array = np.random.default_rng(0).integers(0, 0x7F80, size, np.uint16)
    assert facts_of(array, "BF16", array.copy()) == Facts(blake3(array.tobytes()).hexdigest(), True)
    for place in (0, size // 2, size - 1):
        other = array.copy()
        other[place] ^= 1
        assert facts_of(array, "BF16", other) is None
    assert facts_of(array, "BF16", np.append(array, array[:1])) is None
    array[-1] = 0xFF80
    facts = facts_of(array, "BF16", array)
    assert facts is not None and not facts.finite
