"""Bytes that a token leaves on a rank between forward and backward pass: tensors that autograd saves, bf16.

Counted from megatron-core 0.16.1's layers with Transformer Engine: fused norm and linear layers, attention without a
matrix of scores, gated MLPs whose activation is not fused. Korthikanti et al., "Reducing Activation Recomputation in
Large Transformer Models" (2022), does the same for GPT.
"""

from functools import cache

from slipway.models.architecture import Architecture
from slipway.models.layout import Layout

BF16 = 2


@cache
def layer_bytes(model: Architecture, layout: Layout, has_experts: bool) -> float:
    """Return what one layer saves of a token, bytes; tokens of one context-parallel rank."""
    tensor = layout.tensor
    # input and output of the two norms; each tensor-parallel rank has all of them unless the sequence is sharded
    norms = 4 * model.hidden_size / (tensor if layout.sequence else 1)
    attention = _attention(model) / tensor
    if not has_experts:
        return BF16 * (norms + attention + _mlp(model.intermediate_size) / tensor)
    # a token's copies for its experts and their results; the ranks of all experts share the tokens of all
    copies = 2 * model.experts_per_token * model.hidden_size / (tensor if layout.sequence else 1)
    experts = model.experts_per_token * _mlp(model.expert_intermediate_size) / tensor
    shared = _mlp(model.shared_intermediate_size) / tensor
    return BF16 * (norms + attention + copies + experts + shared)


@cache
def checkpoint_bytes(model: Architecture, layout: Layout) -> float:
    """Return what a recomputed layer keeps of a token: its input."""
    return BF16 * model.hidden_size / (layout.tensor if layout.sequence else 1)


def logits_bytes(model: Architecture, layout: Layout, with_entropy: bool) -> float:
    """Return what the output layer and the loss hold of a token in an update, bytes.

    The logits and their gradient in bf16 and their softmax in float32
    (megatron/core/tensor_parallel/cross_entropy.py); with entropy a copy of the logits and their softmax, both in bf16
    (verl/workers/engine/megatron/transformer_impl.py:1215, verl/utils/megatron/tensor_parallel.py:109).
    """
    return (2 + 2 + 4 + (4 if with_entropy else 0)) * model.vocab_size / layout.tensor


def forward_logits_bytes(model: Architecture, layout: Layout) -> float:
    """Return the same of a pass for log-probabilities, in which verl always computes the entropy.

    Measured: 12 bytes an entry of the vocabulary over eighteen configurations, as in an update with entropy; the layers
    add nothing to it (docs/measurements/2026-12-02-h200.md).
    """
    return 12 * model.vocab_size / layout.tensor


def _attention(model: Architecture) -> float:
    """Elements: query, key and value before and after the rotary embedding, and the output of attention."""
    query = model.heads * model.head_dim
    if model.latent is None:
        return 2 * (query + model.kv_heads * model.head_dim) + model.kv_heads * model.head_dim + query
    # keys are expanded to all heads (megatron/core/transformer/multi_latent_attention.py)
    value = model.heads * model.latent.value_dim
    return 4 * query + 2 * value + (model.latent.query_rank or 0) + model.latent.key_value_rank


def _mlp(width: int) -> float:
    """Elements: gate and up, the activated gate, and the product that the last layer takes."""
    return 4 * width
