"""Which layouts Megatron-core 0.16.1 accepts for a model: arithmetic alone, for the rules and for the planner.

Megatron-core raises in the order of these checks, once the ranks are up; all are reported here at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from slipway.models.architecture import Architecture
from slipway.models.layout import Layout
from slipway.preflight.findings import divisors, nearest


@dataclass(frozen=True)
class Fault:
    """What is wrong with one size of a layout: the rule, the field of `Layout`, why, and what would work."""

    rule: str
    field: str
    why: str
    remedy: str


def faults(layout: Layout, model: Architecture | None) -> Iterator[Fault]:
    """Yield every reason why Megatron-core would refuse the layout; `model` None: its dimensions are not known."""
    yield from _world(layout)
    if model is not None:
        yield from _tensor(layout, model)
        yield from _stages(layout, model)
        yield from _experts(layout, model)


def _world(layout: Layout) -> Iterator[Fault]:
    if layout.world % layout.model_ranks:
        # verl/utils/config.py:110, megatron/core/parallel_state.py:740
        yield Fault(
            "R1",
            "tensor",
            f"TP {layout.tensor} x PP {layout.pipeline} x CP {layout.context} = {layout.model_ranks} does not divide "
            f"the {layout.world} ranks (nodes x GPUs a node).",
            f"TP x PP x CP may be {nearest(layout.model_ranks, divisors(layout.world))}.",
        )
    elif layout.world % layout.expert_ranks:
        # megatron/core/parallel_state.py:785
        yield Fault(
            "R2",
            "expert",
            f"ETP {layout.tensor_in_experts} x EP {layout.expert} x PP {layout.pipeline} = {layout.expert_ranks} does "
            f"not divide the {layout.world} ranks (an ETP of null means the tensor parallel size).",
            "Set ETP to 1, or a smaller EP.",
        )
    if layout.virtual_pipeline is not None and layout.pipeline == 1:
        # megatron/core/parallel_state.py:748
        yield Fault(
            "R7",
            "virtual_pipeline",
            "model chunks interleave pipeline stages, and there is one stage.",
            "Set pipeline above 1, or virtual pipeline to null.",
        )


def _tensor(layout: Layout, model: Architecture) -> Iterator[Fault]:
    tensor = layout.tensor
    allowed = [size for size in divisors(model.heads) if _groups_fit(model, size)]
    if model.heads % tensor or not _groups_fit(model, tensor):
        # megatron/core/transformer/transformer_config.py:926, :944
        yield Fault(
            "R4" if model.heads % tensor else "R5",
            "tensor",
            f"the model has {model.heads} attention heads and {model.kv_heads} key/value heads, which it does not "
            "divide.",
            f"Use {nearest(tensor, allowed)}.",
        )
    if model.vocab_size % tensor:
        # megatron/core/tensor_parallel/utils.py:118
        fitting = (size for size in allowed if model.vocab_size % size == 0)
        yield Fault(
            "R9",
            "tensor",
            f"the vocabulary of {model.vocab_size} does not divide by it.",
            f"Use {nearest(tensor, fitting)}.",
        )

    # megatron/core/tensor_parallel/layers.py:1166
    for what, width in _widths(model):
        if width % tensor:
            yield _indivisible("tensor", tensor, what, width)
    split = layout.tensor_in_experts  # experts are split by ETP, not TP
    if model.experts and model.expert_intermediate_size % split:
        field = "tensor" if layout.expert_tensor is None else "expert_tensor"
        yield _indivisible(field, split, "feed-forward width of an expert", model.expert_intermediate_size)


def _widths(model: Architecture) -> Iterator[tuple[str, int]]:
    """Yield the feed-forward widths that tensor parallelism splits."""
    if model.dense_layers or not model.experts:
        yield "feed-forward width", model.intermediate_size
    if model.shared_intermediate_size:
        yield "feed-forward width of the shared experts", model.shared_intermediate_size


def _indivisible(field: str, size: int, what: str, width: int) -> Fault:
    return Fault("R52", field, f"the {what}, {width}, does not divide by it.", f"Use {nearest(size, divisors(width))}.")


def _groups_fit(model: Architecture, tensor: int) -> bool:
    return model.kv_heads % tensor == 0 or tensor % model.kv_heads == 0


def _stages(layout: Layout, model: Architecture) -> Iterator[Fault]:
    named = layout.first_stage_layers is not None or layout.last_stage_layers is not None
    counted = layout.embedding_as_layer or layout.loss_as_layer
    if named and counted:
        # megatron/core/transformer/transformer_config.py:1301
        yield Fault(
            "R6",
            "embedding_as_layer" if layout.embedding_as_layer else "loss_as_layer",
            "a split that counts embedding or loss as a layer excludes one that names the layers of a stage.",
            "Use one of the two.",
        )
    elif named:
        yield from _named_stages(layout, model)
    else:
        yield from _even_stages(layout, model)


def _even_stages(layout: Layout, model: Architecture) -> Iterator[Fault]:
    layers = model.layers + layout.embedding_as_layer + layout.loss_as_layer
    counted = f" (with embedding or loss counted: {layers})" if layers != model.layers else ""
    if layers % layout.pipeline:
        # megatron/core/transformer/transformer_block.py:157
        yield Fault(
            "R6",
            "pipeline",
            f"the model's {model.layers} layers{counted} do not divide by it.",
            f"Use {nearest(layout.pipeline, divisors(layers))}, or name the layers of the first and last stage.",
        )
    else:
        yield from _chunks(layout, [layers // layout.pipeline])


def _named_stages(layout: Layout, model: Architecture) -> Iterator[Fault]:
    ends = [size for size in (layout.first_stage_layers, layout.last_stage_layers) if size is not None]
    between, stages = model.layers - sum(ends), layout.pipeline - len(ends)
    field = "first_stage_layers" if layout.first_stage_layers is not None else "last_stage_layers"
    if between < 0 or stages < 0 or bool(between) != bool(stages) or (stages and between % stages):
        # megatron/core/transformer/transformer_config.py:1399-1416
        yield Fault(
            "R6",
            field,
            f"{between} of {model.layers} layers are left for {stages} other stages, over which they do not spread "
            "evenly.",
            "Choose the first and last stage so that the other layers divide by the other stages.",
        )
    elif not stages and layout.virtual_pipeline is not None:
        # megatron/core/transformer/transformer_layer.py:86 divides the layers between the ends by their stages
        yield Fault(
            "R7",
            "virtual_pipeline",
            "with the layers of both ends named Megatron-core divides by the stages between, and there are none.",
            "Use null.",
        )
    else:
        yield from _chunks(layout, [*ends, *([between // stages] if stages else [])])


def _chunks(layout: Layout, stages: list[int]) -> Iterator[Fault]:
    chunks = layout.virtual_pipeline
    if chunks is None or layout.pipeline == 1:
        return
    for layers in stages:
        if layers % chunks:
            # megatron/core/transformer/transformer_block.py:177
            yield Fault(
                "R7",
                "virtual_pipeline",
                f"the {layers} layers of a pipeline stage do not divide by it.",
                f"Use {nearest(chunks, divisors(layers))}.",
            )
            return


def _experts(layout: Layout, model: Architecture) -> Iterator[Fault]:
    if layout.expert > 1 and not model.experts:
        # megatron/core/transformer/transformer_config.py:1049
        yield Fault("R8", "expert", "the model is dense: it has no experts.", "Use 1.")
    elif model.experts and model.experts % layout.expert:
        # megatron/core/transformer/moe/moe_layer.py:101
        yield Fault(
            "R8",
            "expert",
            f"the model's {model.experts} experts do not divide by it.",
            f"Use {nearest(layout.expert, divisors(model.experts))}.",
        )
    if model.experts and layout.tensor > 1 and not layout.sequence:
        # megatron/core/transformer/moe/moe_layer.py:379, at the first update
        yield Fault(
            "R11",
            "sequence",
            "a model with experts trains with tensor parallelism only when sequence parallelism is on.",
            "Set it to true.",
        )
