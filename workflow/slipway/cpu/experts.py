"""The linear layers of a rank's experts for the CPU, under the parameter names of Transformer Engine's grouped ones.

The module around them is Megatron-core's own `TEGroupedMLP`, which needs nothing of Transformer Engine itself. mbridge
knows experts by the names of these parameters alone, `linear_fc1.weight0`, not by those of Megatron's experts without
Transformer Engine, `local_experts.0.linear_fc1.weight`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, get_expert_parallel_rng_tracker_name
from megatron.core.utils import divide, make_tp_sharded_tensor_for_checkpoint


class _GroupedLinear(torch.nn.Module):
    """One linear layer for each expert of this rank, without bias: `weight0`, `weight1`, ... are [output, input].

    Takes what Megatron gives to `TEColumnParallelGroupedLinear`. The dispatcher moves tokens between the expert
    tensor-parallel ranks, so that these layers exchange nothing.
    """

    split_axis: int
    """Axis of the weights along which expert tensor parallelism splits them."""

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        init_method: Callable[[torch.Tensor], Any],
        bias: bool,
        pg_collection: Any,
        **_kwargs: object,
    ) -> None:
        super().__init__()
        if bias:
            raise NotImplementedError("the CPU backend's experts take no bias")
        self.num_gemms = num_gemms
        self._groups = pg_collection
        shape = [output_size, input_size]
        shape[self.split_axis] = divide(shape[self.split_axis], pg_collection.expt_tp.size())
        for number in range(num_gemms):
            weight = torch.nn.Parameter(torch.empty(shape, dtype=config.params_dtype))
            set_tensor_model_parallel_attributes(weight, is_parallel=True, dim=self.split_axis, stride=1)
            # an expert that only some of the data-parallel ranks have is not summed over all of them
            weight.allreduce = config.expert_model_parallel_size == 1  # type: ignore[attr-defined]
            self.register_parameter(f"weight{number}", weight)
        if config.perform_initialization:
            with get_cuda_rng_tracker().fork(get_expert_parallel_rng_tracker_name()):
                for weight in self.parameters():
                    init_method(weight)

    def forward(self, input_: torch.Tensor, tokens_per_expert: Sequence[int]) -> tuple[torch.Tensor, None]:
        """Project the tokens, [tokens, input] in the order of their experts; there is no bias.

        An expert without tokens multiplies none, so that its weights get a gradient of zeros: Megatron waits for one.
        """
        tokens = input_.split(list(tokens_per_expert))
        return torch.cat(
            [torch.matmul(own, weight.t()) for own, weight in zip(tokens, self.parameters(), strict=True)]
        ), None

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Describe the weights as slices of one tensor of all experts, as Megatron stores them."""
        assert metadata is not None  # TEGroupedMLP fills it in
        first, experts = self._groups.ep.rank() * self.num_gemms, self._groups.ep.size() * self.num_gemms
        # Experts are replicated over the data-parallel ranks that have the same ones; main is the first of those.
        replica = (0, 0, self._groups.expt_dp.rank())
        return {
            f"{prefix}weight{number}": make_tp_sharded_tensor_for_checkpoint(
                weight,
                f"{prefix}weight",
                self.split_axis,
                replica_id=replica,
                prepend_offsets=(*sharded_offsets, (len(sharded_offsets), first + number, experts)),
                tp_group=self._groups.expt_tp,
                dp_cp_group=metadata["dp_cp_group"],
            )
            for number, weight in enumerate(self.parameters())
        }


class CpuColumnParallelGroupedLinear(_GroupedLinear):
    """Experts' projections up, gate and up in one: split by output."""

    split_axis = 0


class CpuRowParallelGroupedLinear(_GroupedLinear):
    """Experts' projections down: split by input."""

    split_axis = 1


def use_grouped_experts(moe_layer: Any) -> None:
    """Let the spec of a layer with experts build them grouped, where it asks for that (`moe_grouped_gemm`).

    Megatron's own choice without Transformer Engine is `GroupedMLP`, which needs CUDA and stores weights transposed.
    Experts that are not to be grouped stay Megatron's: mbridge has no names for them, on a GPU neither.
    """
    # not above: one of these may be what imports this module (slipway.cpu.plugin)
    from megatron.core.transformer.mlp import MLPSubmodules
    from megatron.core.transformer.moe.experts import GroupedMLP, TEGroupedMLP
    from megatron.core.transformer.spec_utils import ModuleSpec

    if moe_layer.experts.module is GroupedMLP:
        layers = MLPSubmodules(linear_fc1=CpuColumnParallelGroupedLinear, linear_fc2=CpuRowParallelGroupedLinear)
        moe_layer.experts = ModuleSpec(module=TEGroupedMLP, submodules=layers)
