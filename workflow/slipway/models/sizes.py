"""Exact numbers of parameters on a rank, by kind, for any layout: Megatron-core's own model, without building it.

Counts are those of the model that mbridge 0.15.1 describes and megatron-core 0.16.1 builds with Transformer Engine's
layers; a test compares the two. They hold for every tensor-parallel and every expert-parallel rank of a
pipeline stage alike, as all of Megatron's shards are equal. Multi-token prediction layers are left out: verl builds
none by default.
"""

from dataclasses import dataclass, fields
from functools import cache

from slipway.models.architecture import Architecture
from slipway.models.layout import Layout


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters by kind, elements."""

    embedding: int = 0
    attention: int = 0
    """Projections and their biases."""
    mlp: int = 0
    """MLPs and shared experts."""
    experts: int = 0
    """Routed experts: what expert parallelism spreads."""
    router: int = 0
    norm: int = 0
    output: int = 0
    """The output layer; also the last stage's copy of a tied embedding."""

    def __add__(self, other: "Parameters") -> "Parameters":
        return Parameters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: int) -> "Parameters":
        return Parameters(*(getattr(self, f.name) * times for f in fields(self)))

    @property
    def total(self) -> int:
        """All parameters."""
        return self.dense + self.experts

    @property
    def dense(self) -> int:
        """All but the routed experts."""
        return self.embedding + self.attention + self.mlp + self.router + self.norm + self.output


def model_parameters(architecture: Architecture) -> Parameters:
    """Return the parameters of the whole model, each counted once."""
    return rank_parameters(architecture, Layout(world=1), 0)


@cache
def rank_parameters(architecture: Architecture, layout: Layout, pipeline_rank: int) -> Parameters:
    """Return the parameters on each rank of a pipeline stage; `layout` has to be one that Megatron takes."""
    total = Parameters()
    for first, count in stage_chunks(architecture.layers, layout, pipeline_rank):
        dense = min(max(architecture.dense_layers - first, 0), count) if architecture.experts else count
        total += layer_parameters(architecture, layout, has_experts=False) * dense
        total += layer_parameters(architecture, layout, has_experts=True) * (count - dense)
    vocabulary = architecture.vocab_size // layout.tensor * architecture.hidden_size
    last = pipeline_rank == layout.pipeline - 1
    if pipeline_rank == 0:
        total += Parameters(embedding=vocabulary)
    if last:
        total += Parameters(norm=architecture.hidden_size)
    # megatron/core/models/gpt/gpt_model.py:231: a tied output layer has no weight where the embedding is
    if last and not (architecture.tied_embeddings and layout.pipeline == 1):
        total += Parameters(output=vocabulary)
    return total


def stage_chunks(layers: int, layout: Layout, pipeline_rank: int) -> list[tuple[int, int]]:
    """Return the first layer, from 0, and the number of layers of each of a stage's model chunks.

    As `get_num_layers_to_build` (megatron/core/transformer/transformer_block.py:74) and
    `get_transformer_layer_offset` (megatron/core/transformer/transformer_layer.py:39) do.
    """
    virtual = layout.virtual_pipeline or 1
    per_chunk = [layers_of_stage // virtual for layers_of_stage in stage_layers(layers, layout)]
    before, round_size = sum(per_chunk[:pipeline_rank]), sum(per_chunk)
    chunks = []
    for chunk in range(virtual):
        first, count = chunk * round_size + before, per_chunk[pipeline_rank]
        if layout.embedding_as_layer:
            if pipeline_rank == 0 and chunk == 0:
                count -= 1
            else:
                first -= 1
        if layout.loss_as_layer and pipeline_rank == layout.pipeline - 1 and chunk == virtual - 1:
            count -= 1
        chunks.append((first, count))
    return chunks


def stage_layers(layers: int, layout: Layout) -> list[int]:
    """Return the layers of each pipeline stage; an embedding or a loss that counts as a layer is counted in."""
    stages = layout.pipeline
    if layout.first_stage_layers is None and layout.last_stage_layers is None:
        return [(layers + layout.embedding_as_layer + layout.loss_as_layer) // stages] * stages
    first, last = layout.first_stage_layers, layout.last_stage_layers
    middle = stages - (first is not None) - (last is not None)
    per_stage = (layers - (first or 0) - (last or 0)) // middle if middle else 0
    result = [per_stage] * stages
    if first is not None:
        result[0] = first
    if last is not None:
        result[-1] = last
    return result


@cache
def layer_parameters(architecture: Architecture, layout: Layout, has_experts: bool) -> Parameters:
    """Return the parameters of one layer on a rank."""
    hidden, tensor = architecture.hidden_size, layout.tensor
    attention, norm = _attention(architecture, tensor)
    norm += 2 * hidden  # before attention and before the MLP; none of them is sharded
    if not has_experts:
        # gate and up, then down
        return Parameters(attention=attention, norm=norm, mlp=3 * hidden * architecture.intermediate_size // tensor)
    one_expert = 3 * hidden * architecture.expert_intermediate_size // layout.tensor_in_experts
    return Parameters(
        attention=attention,
        norm=norm,
        mlp=3 * hidden * architecture.shared_intermediate_size // tensor,
        experts=architecture.experts // layout.expert * one_expert,
        router=architecture.experts * hidden,
    )


def _attention(architecture: Architecture, tensor: int) -> tuple[int, int]:
    """Return the projections' parameters on a rank, and those of the norms within attention."""
    hidden, heads, latent = architecture.hidden_size, architecture.heads, architecture.latent
    if latent is None:
        query, kv = heads * architecture.head_dim, architecture.kv_heads * architecture.head_dim
        qkv = (query + 2 * kv) // tensor
        projections = qkv * (hidden + architecture.qkv_bias) + query // tensor * hidden
        return projections, 2 * architecture.head_dim * architecture.qk_norm
    # megatron/core/transformer/multi_latent_attention.py:391-510; the projections down are on every rank, whole
    query_width, rank = heads * architecture.head_dim, latent.key_value_rank
    if latent.query_rank is None:
        query = hidden * query_width // tensor
    else:
        query = hidden * latent.query_rank + latent.query_rank * query_width // tensor
    down = hidden * (rank + latent.position_dim)
    up = rank * heads * (architecture.head_dim - latent.position_dim + latent.value_dim) // tensor
    output = heads * latent.value_dim * hidden // tensor
    return query + down + up + output, rank + (latent.query_rank or 0)
