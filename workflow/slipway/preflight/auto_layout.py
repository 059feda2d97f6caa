"""`parallel: auto`: the fastest layout that the forecast lets fit; on the CPU the one with the least parallelism."""

from collections.abc import Sequence

from slipway.config.schema import Parallel
from slipway.errors import SlipwayError
from slipway.models.architecture import Architecture
from slipway.models.layout import Layout
from slipway.preflight.findings import divisors
from slipway.preflight.planning.hardware import gpu_with_memory
from slipway.preflight.planning.in_words import describe
from slipway.preflight.planning.search import Machine, Rejected, plan_layouts_as_given
from slipway.preflight.planning.workload import workload_of
from slipway.preflight.rules.divisibility import faults
from slipway.preflight.subject import Subject


def layout_on_cpu(nodes: int, processes: int, model: Architecture | None) -> Parallel:
    """Return the layout with the least model parallelism; tensor parallelism, which stays in a node, comes first.

    Raises `SlipwayError` when there is none.
    """
    if model is None:
        return Parallel()
    world = nodes * processes
    layouts = (
        layout
        for tensor in divisors(processes)
        for pipeline in divisors(world // tensor)
        if not any(faults(layout := Layout(world, tensor, pipeline, sequence=tensor > 1), model))
    )
    least = min(layouts, key=lambda layout: (layout.model_ranks, layout.pipeline), default=None)
    if least is None:
        raise SlipwayError(f"Megatron-core takes no layout of this model on {world} ranks")
    return Parallel(tensor=least.tensor, pipeline=least.pipeline)


def fastest_layout(subject: Subject) -> Parallel:
    """Return the fastest layout by forecast of what `subject` asks for; its own layout is not looked at.

    Raises `SlipwayError` with what comes nearest when nothing fits.
    """
    work = workload_of(subject)
    nodes, gpus = subject.count("trainer.nnodes"), subject.count("trainer.n_gpus_per_node")
    if subject.model is None or work is None or nodes is None or gpus is None or subject.gpu_memory is None:
        return Parallel()  # its dimensions are not known yet, or the rules will say what is wrong
    machine = Machine(nodes, gpus, gpu_with_memory(subject.gpu_memory / 2**30))
    ranking = plan_layouts_as_given(subject.model, machine, work)
    if not ranking.fitting:
        raise SlipwayError(f"no layout fits: {_nearest(ranking.rejected)}")
    best = ranking.fitting[0]
    layout, peak = best.layout, best.memory.peak
    if peak.total > subject.gpu_memory:
        raise SlipwayError(
            f"no layout fits by forecast; {describe(layout)} comes nearest: phase {peak.name} needs "
            f"{peak.total / 2**30:.0f} GiB. Given explicitly, it is tried"
        )
    return Parallel(
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        virtual_pipeline=layout.virtual_pipeline,
        context=layout.context,
        expert=layout.expert,
        expert_tensor=layout.expert_tensor,
        rollout_tensor=best.work.rollout_tensor,
    )


def _nearest(rejected: Sequence[Rejected]) -> str:
    """Return why the last few families were dropped, those that Megatron would take before the others."""
    nearest = [one for one in rejected if one.buildable] or list(rejected)
    return "; ".join(f"TP {one.tensor} PP {one.pipeline}: {one.why.rstrip('.')}" for one in nearest[-3:])
