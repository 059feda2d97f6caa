"""Which layouts Megatron-core takes for a model: the arithmetic alone, without a config, torch or a process group.

A layout without faults here builds; whether it fits memory is the forecast's to say. Each rule names the line of
megatron-core 0.16.1 that raises when it is broken.
"""

from slipway.models.architecture import Architecture
from slipway.models.layout import Layout
from slipway.models.sizes import stage_chunks, stage_layers


def layout_faults(architecture: Architecture, layout: Layout) -> list[str]:
    """Return why Megatron-core does not take a layout for a model, each reason in words; empty when it does."""
    return [
        *world_faults(layout, has_experts=architecture.experts > 0),
        *tensor_faults(architecture, layout.tensor),
        *pipeline_faults(architecture.layers, layout),
        *expert_faults(architecture, layout),
    ]


def world_faults(layout: Layout, has_experts: bool) -> list[str]:
    """Return why the ranks do not divide into the groups."""
    faults = []
    if layout.world % layout.model_ranks:
        # megatron/core/parallel_state.py:740
        faults.append(f"TP x PP x CP = {layout.model_ranks} does not divide {layout.world} ranks")
    if has_experts and layout.world % layout.expert_ranks:
        # megatron/core/parallel_state.py:785
        faults.append(f"ETP x EP x PP = {layout.expert_ranks} does not divide {layout.world} ranks")
    return faults


def tensor_faults(architecture: Architecture, tensor: int) -> list[str]:
    """Return why a model's widths do not divide over a tensor-parallel group."""
    faults = []
    if architecture.heads % tensor:
        # megatron/core/transformer/transformer_config.py:926
        faults.append(f"TP {tensor} does not divide {architecture.heads} attention heads")
    if architecture.latent is None and architecture.kv_heads % tensor and tensor % architecture.kv_heads:
        # megatron/core/transformer/transformer_config.py:944
        faults.append(f"TP {tensor} neither divides {architecture.kv_heads} key/value heads nor is a multiple of them")
    if architecture.vocab_size % tensor:
        # megatron/core/tensor_parallel/utils.py:118; mbridge does not pad the vocabulary
        faults.append(f"TP {tensor} does not divide the vocabulary of {architecture.vocab_size}")
    has_mlp = not architecture.experts or architecture.dense_layers > 0
    if has_mlp and architecture.intermediate_size % tensor:
        # megatron/core/utils.py divide, from tensor_parallel/layers.py
        faults.append(f"TP {tensor} does not divide the MLP's width of {architecture.intermediate_size}")
    if architecture.shared_intermediate_size % tensor:
        faults.append(f"TP {tensor} does not divide the shared experts' width of {architecture.shared_intermediate_size}")
    return faults


def pipeline_faults(layers: int, layout: Layout) -> list[str]:
    """Return why the layers do not divide over pipeline stages and their chunks."""
    first, last, stages = layout.first_stage_layers, layout.last_stage_layers, layout.pipeline
    if layout.virtual_pipeline is not None and stages == 1:
        # megatron/core/parallel_state.py:748
        return ["VPP interleaves pipeline stages, and there is one"]
    if first is not None or last is not None:
        if layout.embedding_as_layer or layout.loss_as_layer:
            # megatron/core/transformer/transformer_block.py:111
            return ["uneven first or last stages exclude counting the embedding or the loss as a layer"]
        middle, left = stages - (first is not None) - (last is not None), layers - (first or 0) - (last or 0)
        # megatron/core/transformer/transformer_block.py:132; with no middle stage it does not look, and loses layers
        if middle < 0 or left < 0 or (left % middle if middle else left):
            return [f"{layers} layers less the first and last stages' leave {left}, which {middle} stages do not share"]
    elif (layers + layout.embedding_as_layer + layout.loss_as_layer) % stages:
        # megatron/core/transformer/transformer_block.py:157
        return [f"PP {stages} does not divide {layers} layers"]
    virtual = layout.virtual_pipeline or 1
    if any(count % virtual for count in stage_layers(layers, layout)):
        # megatron/core/transformer/transformer_block.py:177
        return [f"VPP {virtual} does not divide the layers of every stage"]
    if any(count < 0 for rank in (0, stages - 1) for _, count in stage_chunks(layers, layout, rank)):
        # megatron/core/transformer/transformer_block.py:197
        return ["a stage is left with less than no layer once embedding and loss are counted"]
    return []


def expert_faults(architecture: Architecture, layout: Layout) -> list[str]:
    """Return why a model's experts do not divide over expert-parallel and expert-tensor-parallel groups."""
    if not architecture.experts:
        # megatron/core/transformer/transformer_config.py:1049
        return [f"EP {layout.expert} on a model without experts"] if layout.expert > 1 else []
    faults = []
    if architecture.experts % layout.expert:
        # megatron/core/transformer/moe/moe_layer.py:101
        faults.append(f"EP {layout.expert} does not divide {architecture.experts} experts")
    if architecture.expert_intermediate_size % layout.tensor_in_experts:
        # megatron/core/utils.py divide, from transformer/moe/experts.py
        faults.append(
            f"ETP {layout.tensor_in_experts} does not divide an expert's width of {architecture.expert_intermediate_size}"
        )
    if layout.tensor > 1 and not layout.sequence:
        # megatron/core/transformer/moe/moe_layer.py:379
        faults.append("experts with TP above 1 train only with sequence parallelism")
    return faults
