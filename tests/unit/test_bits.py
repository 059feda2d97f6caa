"""Tensors as bits, and where torch.save puts them."""

import io

import pytest
import torch

from slipway.convert.archive import find_payload
from slipway.convert.bits import all_finite, as_bytes, same_bits

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("place", [0, 7, 2**19, 2**20 + 4])
def test_one_element_that_is_not_finite_is_noticed(dtype, value, place):
    tensor = torch.zeros(2**20 + 5, dtype=dtype)
    tensor[1], tensor[2], tensor[3] = torch.finfo(dtype).max, torch.finfo(dtype).min, -0.0
    assert all_finite(tensor)
    tensor[place] = value
    assert not all_finite(tensor)
    assert not all_finite(-tensor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_compared_not_values(dtype):
    zero, nan = torch.zeros(5, dtype=dtype), torch.full((5,), float("nan"), dtype=dtype)
    assert same_bits(nan, nan.clone())
    assert same_bits(zero, zero.view(1, 5))
    assert not same_bits(zero, -zero)
    assert not same_bits(zero, zero[:4])
    changed = zero.clone()
    changed[-1] = torch.finfo(dtype).smallest_normal
    assert not same_bits(zero, changed)


def test_a_tensor_that_does_not_lie_in_a_row_is_read_as_it_reads():
    tensor = torch.arange(6, dtype=torch.float32).view(2, 3)
    assert same_bits(tensor.T, torch.tensor([0.0, 3, 1, 4, 2, 5]))


@pytest.mark.parametrize("shape", [(3,), (300, 70), (1, 1)])
def test_the_payload_of_a_saved_tensor_is_its_bytes(shape):
    tensor = torch.randn(shape, dtype=torch.bfloat16)
    saved = io.BytesIO()
    torch.save(tensor, saved)
    # as in a file of many
    content = memoryview(b"before" + saved.getvalue() + b"behind")[6:-6]
    payload = find_payload(content)
    assert content[payload.begin : payload.begin + payload.size] == bytes(as_bytes(tensor).numpy())


@pytest.mark.parametrize("content", [b"", b"PK not an archive", b"x" * 1000])
def test_what_torch_has_not_saved_is_refused(content):
    with pytest.raises(ValueError, match="not one tensor saved by torch"):
        find_payload(memoryview(content))


def test_an_archive_without_a_tensor_is_refused():
    saved = io.BytesIO()
    torch.save([1], saved)
    with pytest.raises(ValueError, match="not one tensor"):
        find_payload(memoryview(saved.getvalue()))
