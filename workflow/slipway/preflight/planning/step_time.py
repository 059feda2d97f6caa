"""Forecast of the time of one GRPO step by part, seconds: good for ranking layouts, not yet calibrated as a clock.

A roofline: operations against the GPU's peak, bytes against its memory and links, both times the shares of
`calibration`. Every response has the longest length.
"""

from dataclasses import astuple, dataclass, fields, replace
from functools import cache

from slipway.models.architecture import Architecture
from slipway.models.layout import Layout
from slipway.models.sizes import model_parameters, rank_parameters, stage_layers
from slipway.preflight.planning import calibration as c
from slipway.preflight.planning.hardware import Gpu
from slipway.preflight.planning.memory import ADAM_BYTES, BF16, FLOAT32, cache_bytes_per_token, state
from slipway.preflight.planning.workload import Workload


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by part."""

    rollout: float
    compute: float
    """Of log-probabilities and updates."""
    pipeline: float
    """Ranks that wait for other pipeline stages, and what these send each other."""
    tensor: float
    """Collectives of tensor parallelism."""
    context: float
    """Keys and values that travel around context parallelism's ring."""
    expert: float
    """All-to-all of experts."""
    data: float
    """Gradients and weights of the distributed optimizer."""
    offload: float
    """Copies to host memory and back, and an optimizer that works there."""

    @property
    def total(self) -> float:
        """Seconds of a step."""
        return sum(astuple(self))

    def parts(self) -> dict[str, float]:
        """Return the seconds by part."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def step_time(
    model: Architecture, layout: Layout, work: Workload, gpu: Gpu, gpus_per_node: int, cache_tokens: float
) -> StepTime:
    """Return the forecast of a layout; `cache_tokens` bounds how many responses are generated together."""
    # passes over the sequences, in units of a forward pass: actor's and reference's log-probabilities, then forward and
    # backward, which is twice as much, and once more forward where layers are recomputed
    passes = 1 + work.has_reference + 3 + (work.recompute is not None)
    tokens = work.responses * work.length / layout.data / layout.context
    micro_tokens = work.micro_tokens / layout.context
    micro_batches = tokens / micro_tokens  # of a whole step
    rounds = micro_batches / work.updates
    layers = max(stage_layers(model.layers, layout))
    links = Links(gpu, gpus_per_node)

    speed = gpu.bf16 * c.MATMUL_SHARE * _shape_share(model, layout, micro_tokens)
    compute = passes * tokens * _slowest_stage(model, layout, work.length) / layout.tensor / speed
    compute += passes * layers * micro_batches * c.LAYER_OVERHEAD

    # an all-gather and a reduce-scatter (or an all-reduce) around attention and around the MLP
    volume = 2 * BF16 * tokens * model.hidden_size
    tensor = passes * layers * 2 * links.seconds(volume, layout.tensor, layout.tensor, messages=2 * micro_batches)
    volume = (layout.context - 1) * 2 * BF16 * model.kv_heads * model.head_dim / layout.tensor * tokens
    span = layout.tensor * layout.context
    context = passes * layers * links.seconds(volume, layout.context, span, (layout.context - 1) * micro_batches)
    # tokens go to their experts and come back; with sequence parallelism each tensor rank sends its own
    volume = BF16 * tokens * model.experts_per_token * model.hidden_size / (layout.tensor if layout.sequence else 1)
    span = layout.expert * layout.tensor_in_experts
    expert = passes * layers * 2 * links.seconds(volume, layout.expert, span, micro_batches)

    busy = compute + tensor + context + expert
    chunks = layout.virtual_pipeline or 1
    waiting = busy * (layout.pipeline - 1) / (chunks * rounds)
    volume = BF16 * tokens * model.hidden_size / (layout.tensor if layout.sequence else 1)
    sent = passes * chunks * links.seconds(volume, layout.pipeline, layout.world, micro_batches)
    return StepTime(
        rollout=rollout_time(model, work, gpu, layout.world, cache_tokens, links),
        compute=compute,
        pipeline=waiting + sent,
        tensor=tensor,
        context=context,
        expert=expert,
        data=_data_time(model, layout, work, links),
        offload=_offload_time(model, layout, work, gpus_per_node),
    )


def forward_operations(model: Architecture, length: int) -> float:
    """Return the operations of a token's forward pass: two a weight that it meets, and attention's, causal."""
    return model.layers * _layer_operations(model, length) + _output_operations(model)


@cache
def _layer_operations(model: Architecture, length: int) -> float:
    """Return the operations of a token in a layer, layers with and without experts averaged."""
    whole = model_parameters(model)
    active = float(whole.attention + whole.mlp + whole.router)
    if model.experts:
        active += whole.experts * model.experts_per_token / model.experts
    # query x key and weights x value, of each half by the causal mask
    return 2 * active / model.layers + 2 * model.heads * model.head_dim * length


def _output_operations(model: Architecture) -> float:
    return 2.0 * model.vocab_size * model.hidden_size


def _slowest_stage(model: Architecture, layout: Layout, length: int) -> float:
    """Return the operations of a token in the stage that has most of them: all others wait for it."""
    layers = [count * _layer_operations(model, length) for count in stage_layers(model.layers, layout)]
    layers[-1] += _output_operations(model)
    return max(layers)


def rollout_time(
    model: Architecture, work: Workload, gpu: Gpu, world: int, cache_tokens: float, links: "Links"
) -> float:
    """Return the seconds of generating a step's responses.

    A step of decoding reads all weights once, of the experts those that its tokens meet, and the cache of every
    sequence; a replica generates as many sequences together as its cache holds.
    """
    replicas = max(1, world // work.rollout_tensor)
    sequences = work.responses / replicas
    together = max(1.0, min(sequences, cache_tokens / work.length))
    whole = model_parameters(model)
    met = 1.0
    if model.experts:
        met = 1 - (1 - model.experts_per_token / model.experts) ** together
    read = BF16 * (whole.dense + met * whole.experts) / work.rollout_tensor
    read += (
        together * cache_bytes_per_token(model, work.rollout_tensor) * (work.prompt_length + work.response_length / 2)
    )
    operations = together * forward_operations(model, work.length) / work.rollout_tensor
    one = max(read / (gpu.bandwidth * c.BANDWIDTH_SHARE), operations / (gpu.bf16 * c.MATMUL_SHARE)) + c.DECODE_OVERHEAD
    one += model.layers * links.seconds(
        2 * 2 * BF16 * together * model.hidden_size, work.rollout_tensor, work.rollout_tensor, messages=2
    )
    waves = max(1.0, sequences / together)  # a place that falls free is taken at once
    prompts = work.prompts / replicas * work.prompt_length  # a group's samples share their prompt's cache
    prefill = prompts * forward_operations(model, work.prompt_length) / work.rollout_tensor
    return waves * work.response_length * one + prefill / (gpu.bf16 * c.MATMUL_SHARE)


def _shape_share(model: Architecture, layout: Layout, tokens: float) -> float:
    """Return how much of a large matrix product's speed the narrowest one of a layer reaches."""
    if not model.experts:
        columns, rows = model.intermediate_size / layout.tensor, tokens
    else:
        columns = model.expert_intermediate_size / layout.tensor_in_experts
        # a rank's experts get the tokens of all ranks of their group
        rows = tokens * layout.expert * model.experts_per_token / model.experts
    return columns / (columns + c.HALF_SPEED_COLUMNS) * rows / (rows + c.HALF_SPEED_ROWS)


def _data_time(model: Architecture, layout: Layout, work: Workload, links: "Links") -> float:
    """Return the seconds of reducing float32 gradients and gathering bf16 weights, once an optimizer step."""
    own = rank_parameters(model, layout, 0)
    copies = layout.data * layout.context
    dense = links.seconds((FLOAT32 + BF16) * own.dense, copies, layout.world)
    experts = links.seconds((FLOAT32 + BF16) * own.experts, layout.expert_data, layout.world) if own.experts else 0.0
    return work.updates * (dense + experts)


def _offload_time(model: Architecture, layout: Layout, work: Workload, gpus_per_node: int) -> float:
    """Return the seconds of moving state out and in again once a step, and of an optimizer in host memory."""
    own = state(model, layout, replace(work, optimizer_on_cpu=False), 0)
    moved = 2 * own.weights * work.param_offload + own.reference * work.reference_offload
    moved += 2 * own.optimizer * work.optimizer_offload
    seconds = moved / c.HOST_LINK
    if work.optimizer_on_cpu:
        seconds += work.updates * gpus_per_node * own.optimizer / ADAM_BYTES / c.HOST_ADAM
    return seconds


@dataclass(frozen=True)
class Links:
    """The links between the ranks of a group."""

    gpu: Gpu
    gpus_per_node: int

    def seconds(self, volume: float, size: int, span: int, messages: float = 1) -> float:
        """Return the time to move `volume` bytes a rank within a group of `size` ranks among `span` neighbours."""
        if size == 1:
            return 0.0
        moved = volume * (size - 1) / size
        if span <= self.gpus_per_node:
            return moved / (self.gpu.node_link * c.LINK_SHARE) + messages * c.NODE_LATENCY
        return moved / (self.gpu.network * c.NETWORK_SHARE) + messages * c.NETWORK_LATENCY
