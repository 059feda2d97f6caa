"""Matrix products of bfloat16 tensors, computed in float32 where the processor has no bfloat16 instructions.

verl's Megatron engine trains in 16 bits only. torch's product of two bfloat16 matrices sums in float32 anyway,
so converting first changes at most the order of the sum; without AVX-512 BF16 or AMX it is two to three times
faster, and more than ten times for attention's backward pass.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

_NATIVE = ("avx512_bf16", "amx_bf16", "bf16")  # the last one is what ARM calls it


def install() -> None:
    """Replace `torch.matmul` and `Tensor.matmul`, which Megatron's linear layers call, in this process."""
    if processor_has_bfloat16():
        return
    torch.matmul = _in_float32(torch.matmul)
    setattr(torch.Tensor, "matmul", _in_float32(torch.Tensor.matmul))  # noqa: B010  (mypy refuses to assign)


@functools.cache
def processor_has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 numbers itself."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in _NATIVE)


def _in_float32(matmul: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(matmul)
    def product(a: Any, b: Any, **kwargs: Any) -> Any:
        if a.dtype is not torch.bfloat16 or b.dtype is not torch.bfloat16 or kwargs or a.is_meta:
            return matmul(a, b, **kwargs)
        return matmul(a.float(), b.float()).to(torch.bfloat16)

    return product
