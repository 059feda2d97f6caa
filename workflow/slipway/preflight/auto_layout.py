"""`parallel: auto`: the layout with the least model parallelism whose training state fits the GPUs."""

from slipway.config.schema import Parallel, Run
from slipway.models.architecture import Architecture
from slipway.models.layout import Layout
from slipway.preflight.findings import divisors
from slipway.preflight.rules.divisibility import faults

# Bytes a parameter in training: bf16 weight 2, fp32 gradient 4; fp32 master weight and Adam's two moments 12, which
# the distributed optimizer spreads over data-parallel ranks; bf16 reference model 2.
RESIDENT_BYTES = 2 + 4 + 2
SHARDED_BYTES = 12
# The rest is for activations, the logits of a micro batch and the rollout engine.
STATE_SHARE_OF_MEMORY = 0.5


def choose_layout(run: Run, model: Architecture | None) -> Parallel | None:
    """Return the layout with the least model parallelism whose training state fits; None when there is none.

    Tensor parallelism stays within a node and comes first, pipeline parallelism follows: the cheaper one first in
    communication. `device: cpu` takes the first layout that is allowed, memory being the host's.
    """
    if model is None:
        return Parallel()
    world = run.nodes * run.gpus_per_node
    candidates = [
        layout
        for tensor in divisors(run.gpus_per_node)
        for pipeline in divisors(world // tensor)
        if not any(faults(layout := Layout(world, tensor, pipeline, sequence=tensor > 1), model))
    ]
    candidates.sort(key=lambda layout: (layout.model_ranks, layout.pipeline))
    for layout in candidates:
        if run.device == "cpu" or _state_fits(run, layout, model):
            return Parallel(tensor=layout.tensor, pipeline=layout.pipeline)
    return None


def state_gib(layout: Layout, model: Architecture) -> float:
    """Return GiB a rank of weights, gradients, optimizer state and reference model."""
    parameters = model.parameter_count / (layout.tensor * layout.pipeline)
    sharded = SHARDED_BYTES / max(1, layout.data * layout.context)
    return float(parameters * (RESIDENT_BYTES + sharded) / 2**30)


def _state_fits(run: Run, layout: Layout, model: Architecture) -> bool:
    return state_gib(layout, model) <= STATE_SHARE_OF_MEMORY * run.gpu_memory_gib
