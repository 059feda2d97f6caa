"""Rules of the parallel layout: which sizes Megatron-core and the rollout engine accept for a model.

Each rule names the line of verl 0.9.1 or megatron-core 0.16.1 that raises when it is broken, usually minutes after
the GPUs are held.
"""

from slipway.config.schema import Parallel, Run
from slipway.models.architecture import Architecture
from slipway.preflight.findings import Finding, Severity, divisors, nearest

# Bytes a parameter in training: bf16 weight 2, fp32 gradient 4; fp32 master weight and Adam's two moments 12, which
# the distributed optimizer spreads over data-parallel ranks; bf16 reference model 2.
RESIDENT_BYTES = 2 + 4 + 2
SHARDED_BYTES = 12
# The rest is for activations, the logits of a micro batch and the rollout engine.
STATE_SHARE_OF_MEMORY = 0.5


def world_size(run: Run) -> int:
    """Return the number of training ranks."""
    return run.nodes * run.gpus_per_node


def model_parallel_size(parallel: Parallel) -> int:
    """Return how many ranks hold one copy of the model: TP x PP x CP."""
    return parallel.tensor * parallel.pipeline * parallel.context


def data_parallel_size(run: Run, parallel: Parallel) -> int:
    """Return the number of copies of the model (DP), rounded down."""
    return world_size(run) // model_parallel_size(parallel)


def check_layout(name: str, run: Run, parallel: Parallel, model: Architecture | None) -> list[Finding]:
    """Return what is wrong with a run's layout; `model` is None when its dimensions are not known yet."""
    findings = _check_world(name, run, parallel)
    if model is not None:
        findings += _check_tensor(name, parallel, model)
        findings += _check_pipeline(name, parallel, model)
        findings += _check_experts(name, run, parallel, model)
    return findings


def choose_layout(run: Run, model: Architecture | None) -> Parallel | None:
    """Return the layout with the least model parallelism whose training state fits; None when there is none.

    Tensor parallelism stays within a node and comes first, pipeline parallelism follows: the cheaper one first in
    communication. `device: cpu` takes the first layout that is allowed, memory being the host's.
    """
    if model is None:
        return Parallel()
    world = world_size(run)
    candidates = []
    for tensor in divisors(run.gpus_per_node):
        for pipeline in divisors(world // tensor):
            parallel = Parallel(tensor=tensor, pipeline=pipeline)
            if not check_layout("", run, parallel, model):
                candidates.append(parallel)
    candidates.sort(key=lambda layout: (model_parallel_size(layout), layout.pipeline))
    for parallel in candidates:
        if run.device == "cpu" or _state_fits(run, parallel, model):
            return parallel
    return None


def state_gib(run: Run, parallel: Parallel, model: Architecture) -> float:
    """Return GiB a rank of weights, gradients, optimizer state and reference model."""
    parameters = model.parameter_count / (parallel.tensor * parallel.pipeline)
    sharded = SHARDED_BYTES / max(1, data_parallel_size(run, parallel) * parallel.context)
    return float(parameters * (RESIDENT_BYTES + sharded) / 2**30)


def _state_fits(run: Run, parallel: Parallel, model: Architecture) -> bool:
    return state_gib(run, parallel, model) <= STATE_SHARE_OF_MEMORY * run.gpu_memory_gib


def _check_world(name: str, run: Run, parallel: Parallel) -> list[Finding]:
    findings = []
    world, size = world_size(run), model_parallel_size(parallel)
    if world % size:
        # verl/utils/config.py:110, megatron/core/parallel_state.py:740
        findings.append(
            Finding(
                "R1",
                Severity.ERROR,
                f"runs.{name}.parallel",
                f"TP {parallel.tensor} x PP {parallel.pipeline} x CP {parallel.context} = {size}",
                f"does not divide the {world} ranks (nodes {run.nodes} x gpus_per_node {run.gpus_per_node}).",
                f"TP x PP x CP may be {nearest(size, divisors(world))}.",
            )
        )
    elif parallel.virtual_pipeline and parallel.pipeline == 1:
        # megatron/core/parallel_state.py:748
        findings.append(
            Finding(
                "R7",
                Severity.ERROR,
                f"runs.{name}.parallel.virtual_pipeline",
                parallel.virtual_pipeline,
                "model chunks interleave pipeline stages, and there is one stage.",
                "Set pipeline above 1, or virtual_pipeline: null.",
            )
        )
    if world % parallel.rollout_tensor:
        # verl/workers/engine_workers.py:659
        findings.append(
            Finding(
                "R22",
                Severity.ERROR,
                f"runs.{name}.parallel.rollout_tensor",
                parallel.rollout_tensor,
                f"does not divide the {world} ranks that the rollout engine is spread over.",
                f"Use {nearest(parallel.rollout_tensor, divisors(world))}.",
            )
        )
    return findings


def _check_tensor(name: str, parallel: Parallel, model: Architecture) -> list[Finding]:
    tensor, key = parallel.tensor, f"runs.{name}.parallel.tensor"
    allowed = [size for size in divisors(model.heads) if _groups_divide(model, size)]
    findings = []
    if model.heads % tensor or not _groups_divide(model, tensor):
        # megatron/core/transformer/transformer_config.py:926, :944
        findings.append(
            Finding(
                "R4" if model.heads % tensor else "R5",
                Severity.ERROR,
                key,
                tensor,
                f"the model has {model.heads} attention heads and {model.kv_heads} key/value heads, which it does not "
                "divide.",
                f"Use {nearest(tensor, allowed)}.",
            )
        )
    if model.vocab_size % tensor:
        # megatron/core/tensor_parallel/utils.py:118
        findings.append(
            Finding(
                "R9",
                Severity.ERROR,
                key,
                tensor,
                f"the vocabulary of {model.vocab_size} does not divide by it.",
                f"Use {nearest(tensor, (size for size in allowed if model.vocab_size % size == 0))}.",
            )
        )
    rollout = parallel.rollout_tensor
    if model.heads % rollout:
        findings.append(
            Finding(
                "R24",
                Severity.ERROR,
                f"runs.{name}.parallel.rollout_tensor",
                rollout,
                f"the model's {model.heads} attention heads do not divide by it.",
                f"Use {nearest(rollout, divisors(model.heads))}.",
            )
        )
    return findings


def _check_pipeline(name: str, parallel: Parallel, model: Architecture) -> list[Finding]:
    chunks = parallel.pipeline * (parallel.virtual_pipeline or 1)
    if model.layers % parallel.pipeline:
        # megatron/core/transformer/transformer_block.py:157
        return [
            Finding(
                "R6",
                Severity.ERROR,
                f"runs.{name}.parallel.pipeline",
                parallel.pipeline,
                f"the model's {model.layers} layers do not divide by it.",
                f"Use {nearest(parallel.pipeline, divisors(model.layers))}.",
            )
        ]
    if parallel.pipeline > 1 and model.layers % chunks:
        stage = model.layers // parallel.pipeline
        return [
            Finding(
                "R7",
                Severity.ERROR,
                f"runs.{name}.parallel.virtual_pipeline",
                parallel.virtual_pipeline,
                f"the {stage} layers of a pipeline stage do not divide by it.",
                f"Use {nearest(parallel.virtual_pipeline or 1, divisors(stage))}.",
            )
        ]
    return []


def _check_experts(name: str, run: Run, parallel: Parallel, model: Architecture) -> list[Finding]:
    expert, key = parallel.expert, f"runs.{name}.parallel.expert"
    if expert > 1 and not model.experts:
        # megatron/core/transformer/transformer_config.py:1049
        return [Finding("R8", Severity.ERROR, key, expert, "the model is dense: it has no experts.", "Use 1.")]
    if model.experts and model.experts % expert:
        # megatron/core/transformer/moe/moe_layer.py:101
        return [
            Finding(
                "R8",
                Severity.ERROR,
                key,
                expert,
                f"the model's {model.experts} experts do not divide by it.",
                f"Use {nearest(expert, divisors(model.experts))}.",
            )
        ]
    expert_tensor = parallel.expert_tensor or parallel.tensor
    size = expert_tensor * expert * parallel.pipeline
    if model.experts and world_size(run) % size:
        # megatron/core/parallel_state.py:785
        return [
            Finding(
                "R2",
                Severity.ERROR,
                key,
                expert,
                f"ETP {expert_tensor} x EP {expert} x PP {parallel.pipeline} = {size} does not divide the "
                f"{world_size(run)} ranks (expert_tensor: null means the tensor parallel size).",
                "Set expert_tensor: 1, or a smaller expert.",
            )
        ]
    return []


def _groups_divide(model: Architecture, tensor: int) -> bool:
    return model.kv_heads % tensor == 0 or tensor % model.kv_heads == 0
