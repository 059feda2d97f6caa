"""Megatron-core layers for the CPU, under the parameter names that Transformer Engine's layers have.

Megatron's own "local" layer spec keeps each norm apart (`input_layernorm.weight`); Transformer Engine's fuses it
into the linear layer that follows (`self_attention.linear_qkv.layer_norm_weight`). The name maps of mbridge, of
verl's converters and of Slipway's are written for the fused names, so a checkpoint of the CPU backend is one
of the GPU backend too, and the other way round.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.identity_op import IdentityOp

from slipway.cpu.bfloat16 import processor_has_bfloat16
from slipway.cpu.experts import use_grouped_experts


class CpuAttention(DotProductAttention):
    """Causal attention through torch's SDPA, for padded batches (sbhd) and packed ones (thd).

    Megatron's local attention refuses packed sequences, which is what verl trains with.
    """

    def __init__(self, *args: Any, k_channels: int | None = None, v_channels: int | None = None, **kwargs: Any) -> None:
        """Take the widths that latent attention gives too: the tensors have them."""
        super().__init__(*args, **kwargs)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> torch.Tensor:
        """Return the context, heads merged: [s, b, h * d] or, packed, [t, h * d]."""
        if attention_bias is not None:
            raise NotImplementedError("the CPU backend's attention takes no bias")
        if packed_seq_params is None:
            # verl pads on the right: keys of padding come after every real query, so the causal mask suffices.
            context = self._attend(*(x.permute(1, 2, 0, 3) for x in (query, key, value)))
            return context.permute(2, 0, 1, 3).reshape(*query.shape[:2], -1)
        return self._packed(query, key, value, _sequence_starts(packed_seq_params))

    def _packed(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        """Unpack into one right-padded batch, attend once, pack again.

        One call for all sequences: a call each would cost more than the attention itself at demo size.
        """
        lengths = starts.diff()
        sequence = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        position = torch.arange(len(sequence)) - starts[sequence]
        shape = (len(lengths), int(lengths.max()))

        def unpack(x: torch.Tensor) -> torch.Tensor:
            batch = x.new_zeros(*shape, *x.shape[1:])
            batch = batch.index_put((sequence, position), x[: len(sequence)])
            return batch.transpose(1, 2)  # [b, h, s, d]

        context = self._attend(unpack(query), unpack(key), unpack(value)).transpose(1, 2)[sequence, position]
        padding = len(query) - len(context)  # of the packed batch, to a multiple that parallelism asks for
        return F.pad(context.flatten(1), (0, 0, 0, padding))

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        queries_per_group = query.shape[1] // key.shape[1]
        if queries_per_group > 1:
            key, value = (x.repeat_interleave(queries_per_group, dim=1) for x in (key, value))
        dtype = query.dtype
        if dtype is torch.bfloat16 and not processor_has_bfloat16():
            query, key, value = query.float(), key.float(), value.float()
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.softmax_scale)
        return context.to(dtype)


def _sequence_starts(packed: Any) -> torch.Tensor:
    padded = packed.cu_seqlens_q_padded
    starts = padded if padded is not None else packed.cu_seqlens_q
    return torch.as_tensor(starts, dtype=torch.long)


class CpuRMSNorm(torch.nn.RMSNorm):
    """RMSNorm as a module of its own: the last one, those of queries and keys, those before experts.

    Megatron's wrapper around torch's refuses sequence parallelism. All it takes is the mark on the weight by
    which Megatron sums the gradient over the tensor-parallel ranks.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_kwargs: object) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class CpuLayerNormColumnParallelLinear(ColumnParallelLinear):
    """RMSNorm and a column-parallel linear layer, named as Transformer Engine's fused module."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))
        self.layer_norm_weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.eps = config.layernorm_epsilon

    def forward(self, input_: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Norm, then project; with sequence parallelism the norm runs on this rank's part of the sequence."""
        normed = F.rms_norm(input_, (input_.shape[-1],), self.layer_norm_weight, self.eps)
        return super().forward(normed, *args, **kwargs)


class CpuReplicatedLinear(torch.nn.Linear):
    """A linear layer that every tensor-parallel rank has whole: latent attention's projections down.

    Stands for Transformer Engine's with `parallel_mode="duplicated"`, the only one that Megatron gives them.
    """

    def __init__(self, input_size: int, output_size: int, *, config: Any, init_method: Any, **_kwargs: object) -> None:
        super().__init__(input_size, output_size, bias=False, dtype=config.params_dtype)
        if config.perform_initialization:
            init_method(self.weight)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, input_: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        """Return the projection and that there is no bias."""
        return super().forward(input_), None


def cpu_layer_spec(block_spec: Any) -> Any:
    """Turn Megatron's local block spec into one of the layers above, in place."""
    for layer_spec in block_spec.layer_specs:
        layer = layer_spec.submodules
        attention = layer.self_attention.submodules
        attention.core_attention = CpuAttention
        if hasattr(attention, "linear_kv_down_proj"):
            _make_latent(attention)
            layer.input_layernorm = CpuRMSNorm  # two projections read its output
        else:
            attention.linear_qkv = CpuLayerNormColumnParallelLinear
            layer.input_layernorm = IdentityOp
            if attention.q_layernorm not in (None, IdentityOp):
                attention.q_layernorm = attention.k_layernorm = CpuRMSNorm
        mlp = layer.mlp.submodules
        if hasattr(mlp, "linear_fc1"):
            mlp.linear_fc1 = CpuLayerNormColumnParallelLinear
            layer.pre_mlp_layernorm = IdentityOp
        else:  # experts: the router reads the normed hidden states too
            layer.pre_mlp_layernorm = CpuRMSNorm
            use_grouped_experts(mlp)
        # The local spec renames its separate norms to the fused names on saving; these have them already.
        layer.sharded_state_dict_keys_map = {}
    block_spec.layer_norm = CpuRMSNorm
    return block_spec


def _make_latent(attention: Any) -> None:
    # not above: it imports modules of experts, one of which may be what imports this one (slipway.cpu.plugin)
    from megatron.core.transformer import multi_latent_attention

    # Megatron asks for this class itself before it takes a projection down for one that every rank has whole
    multi_latent_attention.TELinear = CpuReplicatedLinear
    attention.linear_q_down_proj = attention.linear_kv_down_proj = CpuReplicatedLinear
    attention.linear_q_up_proj = attention.linear_kv_up_proj = CpuLayerNormColumnParallelLinear
    attention.q_layernorm = attention.kv_layernorm = IdentityOp


def _with_cpu_layers(get_block_spec: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(get_block_spec)  # mbridge looks at its signature
    def get_cpu_block_spec(config: Any, use_transformer_engine: bool = True, **kwargs: Any) -> Any:
        config.masked_softmax_fusion = config.gradient_accumulation_fusion = False  # CUDA extensions
        return cpu_layer_spec(get_block_spec(config, use_transformer_engine=False, **kwargs))

    return get_cpu_block_spec


def patch_router(module: ModuleType) -> None:
    """Say that Transformer Engine is not there: without it, megatron-core 0.16.1 leaves its product undefined."""
    if not hasattr(module, "te_general_gemm"):
        module.te_general_gemm = None  # type: ignore[attr-defined]


def patch_dispatcher(module: ModuleType) -> None:
    """Give the token dispatcher its split sizes as numbers; Megatron turns only CUDA tensors into them."""

    def as_numbers(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor

    module.maybe_move_tensor_to_cpu = as_numbers  # type: ignore[attr-defined]


def patch_mbridge(module: ModuleType) -> None:
    """Let mbridge build CPU layers, and read `rope_theta` where transformers 5 keeps it."""
    module.get_gpt_decoder_block_spec = _with_cpu_layers(module.get_gpt_decoder_block_spec)  # type: ignore[attr-defined]

    def gpt_model_args(self: Any) -> dict[str, Any]:
        from verl.utils.megatron_utils import get_hf_rope_theta

        return {
            "vocab_size": self.hf_config.vocab_size,
            "max_sequence_length": self.hf_config.max_position_embeddings,
            "position_embedding_type": "rope",
            # mbridge 0.15.1 reads hf_config.rope_theta, which transformers 5 moved into rope_parameters.
            "rotary_base": get_hf_rope_theta(self.hf_config),
        }

    module.LLMBridge._get_gptmodel_args = gpt_model_args  # type: ignore[attr-defined]


def patch_verl_initializer(module: ModuleType) -> None:
    """Let verl's own model initializers (its converter and merger use them) build CPU layers."""
    module.get_gpt_decoder_block_spec = _with_cpu_layers(module.get_gpt_decoder_block_spec)  # type: ignore[attr-defined]
