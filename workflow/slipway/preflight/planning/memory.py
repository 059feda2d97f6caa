"""Forecast of memory by phase, bytes a GPU, and of host memory, /dev/shm and disk.

Each term says what it counts; what only measurement can tell is in `calibration`. GPU figures are those of the pipeline
stage that needs most.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slipway.models.architecture import Architecture
from slipway.models.layout import Layout
from slipway.models.sizes import model_parameters, rank_parameters, stage_chunks
from slipway.preflight.planning import calibration
from slipway.preflight.planning.activations import (
    checkpoint_bytes,
    forward_logits_bytes,
    layer_bytes,
    logits_bytes,
)
from slipway.preflight.planning.workload import Workload

BF16, FLOAT32 = 2, 4
ADAM_BYTES = 3 * FLOAT32
"""Of a parameter: master weight and Adam's two moments."""
TRAINER_CONTEXT, ROLLOUT_CONTEXT = "context of the trainer", "context of the rollout engine"
ROLLOUT_ENGINE, ROLLOUT_WEIGHTS = "rollout engine", "weights of the rollout engine"
FRAGMENTATION = "fragmentation"
# What torch in the trainer's process knows nothing of: CUDA's own, and the rollout engine, which is another process.
NOT_OF_THE_TRAINER = frozenset({TRAINER_CONTEXT, ROLLOUT_CONTEXT, ROLLOUT_ENGINE, ROLLOUT_WEIGHTS})


@dataclass(frozen=True)
class Phase:
    """One phase of a step on the GPU that needs most: terms in bytes."""

    name: str
    terms: Mapping[str, float]

    @property
    def total(self) -> float:
        """Bytes of all terms."""
        return sum(self.terms.values())

    @property
    def reserved(self) -> float:
        """Bytes that torch reserves in the trainer's process (`torch.cuda.max_memory_reserved`)."""
        return sum(size for name, size in self.terms.items() if name not in NOT_OF_THE_TRAINER)

    @property
    def allocated(self) -> float:
        """Bytes of it that hold something (`torch.cuda.max_memory_allocated`)."""
        return self.reserved - self.terms.get(FRAGMENTATION, 0.0)


@dataclass(frozen=True)
class Forecast:
    """What a training needs; bytes."""

    phases: tuple[Phase, ...]
    """Of one GPU, in the order in which they come."""
    cache_tokens: float
    """Tokens that the key/value cache of one rollout replica holds; 0 or less: not even the weights fit."""
    host: Mapping[str, float]
    """Of one node."""
    shared: float
    """Of /dev/shm, a node."""
    checkpoint: float
    """One checkpoint, on disk."""

    @property
    def peak(self) -> Phase:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: phase.total)

    def exceeds(self, memory: float) -> bool:
        """Whether even the low end of the band is more than a GPU has."""
        return self.peak.total * (1 - calibration.MEMORY_BAND) > memory

    def may_exceed(self, memory: float) -> bool:
        """Whether the high end of the band is more than a GPU has."""
        return self.peak.total * (1 + calibration.MEMORY_BAND) > memory


@dataclass(frozen=True)
class State:
    """What one rank holds of the model while it trains; bytes."""

    weights: float
    gradients: float
    optimizer: float
    reference: float


def forecast(model: Architecture, layout: Layout, work: Workload, memory: float, gpus_per_node: int) -> Forecast:
    """Return the forecast of a training on GPUs of `memory` bytes; the layout has to be one that Megatron takes."""
    stages = [_stage_phases(model, layout, work, stage, memory) for stage in _stages(layout)]
    phases = tuple(max(options, key=lambda phase: phase.total) for options in zip(*stages, strict=True))
    first = state(model, layout, work, 0)
    staged = checkpoint_bytes_of(model) / max(1, layout.world // gpus_per_node)
    return Forecast(
        phases=phases,
        cache_tokens=cache_tokens(model, work, memory),
        host=dict(_host(first, work, gpus_per_node)) | {"checkpoint being written": staged},
        shared=gpus_per_node * work.bucket,
        checkpoint=checkpoint_bytes_of(model),
    )


def state(model: Architecture, layout: Layout, work: Workload, stage: int) -> State:
    """Return the state of a rank of a pipeline stage.

    bf16 weights and their float32 gradients (mbridge/core/util.py:193), master weights and Adam's moments in float32,
    which the distributed optimizer shards over the ranks that hold the same parameters
    (megatron/core/optimizer/distrib_optimizer.py); the reference model in bf16.
    """
    own = rank_parameters(model, layout, stage)
    copies = layout.data * layout.context if work.distributed_optimizer else 1
    expert_copies = max(1, layout.expert_data) if work.distributed_optimizer else 1
    return State(
        weights=BF16 * own.total,
        gradients=FLOAT32 * own.total,
        optimizer=0 if work.optimizer_on_cpu else ADAM_BYTES * (own.dense / copies + own.experts / expert_copies),
        reference=BF16 * own.total if work.has_reference else 0,
    )


def cache_tokens(model: Architecture, work: Workload, memory: float) -> float:
    """Return how many tokens the key/value cache of one rollout replica holds."""
    weights = BF16 * model_parameters(model).total / work.rollout_tensor
    left = work.rollout_share * memory - weights - calibration.ROLLOUT_ACTIVATIONS
    return left / cache_bytes_per_token(model, work.rollout_tensor)


def cache_bytes_per_token(model: Architecture, tensor: int) -> float:
    """Return the bytes of a token in the key/value cache of one rank; every rank has at least one head's."""
    if model.latent is not None:  # the compressed vector, on every rank
        return BF16 * model.layers * (model.latent.key_value_rank + model.latent.position_dim)
    return BF16 * 2 * model.layers * max(1, model.kv_heads // tensor) * model.head_dim


def checkpoint_bytes_of(model: Architecture) -> float:
    """Return the size of a checkpoint: bf16 weights, and the optimizer's float32 state."""
    return (BF16 + ADAM_BYTES) * model_parameters(model).total


def weights_bytes_of(model: Architecture) -> float:
    """Return the size of a checkpoint's weights alone, bf16."""
    return BF16 * model_parameters(model).total


@dataclass(frozen=True)
class Activations:
    """What layers leave for the backward pass at a stage's peak in an update; bytes."""

    kept: float
    """There from a micro batch's forward pass to its backward pass."""
    recomputed: float
    """Of the layers that are being computed again; nothing of it is there yet while the loss is computed."""


def activations(model: Architecture, layout: Layout, work: Workload, stage: int) -> Activations:
    """Return the activations of a stage, logits not counted.

    In the 1F1B schedule a stage holds as many micro batches as there are stages from it to the last; interleaved stages
    hold 1 + (PP - 1) / (PP x VPP) times as much on the first (Narayanan et al., "Efficient Large-Scale Language Model
    Training on GPU Clusters", 2021, and Korthikanti et al., 2022).
    """
    in_flight = float(layout.pipeline - stage)
    if layout.virtual_pipeline:
        in_flight += (layout.pipeline - 1) / layout.virtual_pipeline
    tokens = work.micro_tokens / layout.context
    dense, experts = _layers(model, layout, stage)
    saved = dense * layer_bytes(model, layout, False) + experts * layer_bytes(model, layout, True)
    if work.recompute is None:
        return Activations(tokens * in_flight * saved * calibration.ACTIVATION_EXCESS, 0)
    # of the layers at work all is there, of the others the input of every chunk that is recomputed together
    layers = dense + experts
    recomputed = layers if work.recompute.layers is None else min(layers, work.recompute.layers)
    inputs = -(-recomputed // work.recompute.chunk) * checkpoint_bytes(model, layout)
    kept = saved * (layers - recomputed) / layers * calibration.ACTIVATION_EXCESS if layers else 0.0
    together = min(work.recompute.chunk, recomputed)
    whole = layer_bytes(model, layout, experts > 0) * calibration.ACTIVATION_EXCESS * together
    return Activations(tokens * in_flight * (inputs + kept), tokens * whole)


def _stages(layout: Layout) -> list[int]:
    """Stages that can need most: the ends differ from the rest, and of the rest the first holds most."""
    return sorted({0, min(1, layout.pipeline - 1), layout.pipeline - 1})


def _layers(model: Architecture, layout: Layout, stage: int) -> tuple[int, int]:
    """Return the numbers of dense layers and of layers with experts of a stage."""
    dense = experts = 0
    for first, count in stage_chunks(model.layers, layout, stage):
        of_chunk = min(max(model.dense_layers - first, 0), count) if model.experts else count
        dense += of_chunk
        experts += count - of_chunk
    return dense, experts


def _stage_phases(model: Architecture, layout: Layout, work: Workload, stage: int, memory: float) -> tuple[Phase, ...]:
    own = state(model, layout, work, stage)
    trainer = {TRAINER_CONTEXT: calibration.TRAINER_CONTEXT}
    asleep = {ROLLOUT_CONTEXT: calibration.ROLLOUT_CONTEXT}
    if not work.rollout_sleeps:
        asleep |= {ROLLOUT_ENGINE: work.rollout_share * memory}
    resident = {
        "weights": 0.0 if work.param_offload else own.weights,
        "gradients": 0.0 if work.param_offload else own.gradients,
        "optimizer": 0.0 if work.optimizer_offload else own.optimizer,
        "reference": 0.0 if work.reference_offload else own.reference,
    }
    awake = asleep | {ROLLOUT_ENGINE: work.rollout_share * memory}
    reference = 0.0 if work.reference_offload else own.reference
    model_state = {"weights": own.weights, "gradients": own.gradients, "optimizer": own.optimizer}
    tokens = work.log_prob_tokens / layout.context
    of_layers = activations(model, layout, work, stage)
    of_loss = forward = 0.0
    if stage == layout.pipeline - 1 and work.materializes_logits:
        of_loss = work.micro_tokens / layout.context * logits_bytes(model, layout, work.with_entropy)
        forward = tokens * forward_logits_bytes(model, layout)
    # logits and their gradient are gone when the first layer is computed again
    update = of_layers.kept + max(of_layers.recomputed, of_loss)
    forward = max(forward, tokens * layer_bytes(model, layout, model.experts > 0))
    allocated = own.weights + own.gradients + own.optimizer + reference + update
    return (
        # vLLM takes its share while master weights are there and Adam's moments are not
        Phase("start", {**trainer, **resident, "optimizer": resident["optimizer"] / 3, **awake}),
        Phase("rollout", {**trainer, **resident, **awake}),
        # weights come back and travel in buckets, while the engine has its own and no cache yet
        Phase(
            "weight transfer",
            {
                **trainer,
                **resident,
                "weights": own.weights,
                "bucket": work.bucket,
                ROLLOUT_WEIGHTS: BF16 * model_parameters(model).total / work.rollout_tensor,
                **asleep,
            },
        ),
        Phase(
            "log-probabilities",
            {**trainer, **resident, "weights": own.weights, "reference": own.reference, "one pass": forward, **asleep},
        ),
        Phase(
            "update",
            {
                **trainer,
                **model_state,
                "reference": reference,
                "activations and logits": update,
                "workspace": calibration.UPDATE_WORKSPACE,
                FRAGMENTATION: (calibration.FRAGMENTATION - 1) * allocated,
                **asleep,
            },
        ),
        Phase("save", {**trainer, **model_state, "reference": reference, **asleep}),
    )


def _host(own: State, work: Workload, gpus_per_node: int) -> Iterator[tuple[str, float]]:
    """Host memory of a node: what is offloaded, and the processes."""
    yield "offloaded weights", gpus_per_node * own.weights * work.param_offload
    # gradients are dropped and made anew (verl/utils/megatron_utils.py, offload_megatron_model_to_cpu)
    yield "offloaded optimizer", gpus_per_node * own.optimizer * work.optimizer_offload
    yield "offloaded reference", gpus_per_node * own.reference * work.reference_offload
    yield "processes", gpus_per_node * calibration.HOST_PROCESSES + calibration.HOST_NODE
