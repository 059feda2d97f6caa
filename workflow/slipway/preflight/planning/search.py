"""The planner: every layout that Megatron takes, which of them fit, and which is fastest by forecast."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slipway.models.architecture import Architecture
from slipway.models.layout import Layout
from slipway.models.sizes import stage_layers
from slipway.preflight.findings import divisors
from slipway.preflight.planning.calibration import GIB
from slipway.preflight.planning.hardware import Gpu
from slipway.preflight.planning.memory import Forecast, cache_tokens, forecast
from slipway.preflight.planning.step_time import Links, StepTime, rollout_time, step_time
from slipway.preflight.planning.workload import Recompute, Workload
from slipway.preflight.rules.divisibility import faults

LONGEST_PIPELINE = 32
LARGEST_CONTEXT = 16
LARGEST_ROLLOUT = 64
# Micro batches in longest responses. Larger ones use the GPU better until they hold so many tokens.
MICRO_BATCHES = (16, 8, 4, 2, 1)
ENOUGH_MICRO_TOKENS = 16384
# Share of the memory that a plan leaves free where it can, for what the forecast misses.
HEADROOM = 0.1
# What saves memory, by what it costs, and the rollout engine's share of the memory beside it.
SAVINGS: tuple[tuple[float, dict[str, Any]], ...] = (
    (0.5, {}),
    (0.5, {"recompute": Recompute()}),
    (0.75, {"param_offload": True, "optimizer_offload": True, "reference_offload": True}),
    (0.75, {"recompute": Recompute(), "param_offload": True, "optimizer_offload": True, "reference_offload": True}),
    (0.75, {"recompute": Recompute(), "param_offload": True, "reference_offload": True, "optimizer_on_cpu": True}),
)


@dataclass(frozen=True)
class Machine:
    """Where a training is to run."""

    nodes: int
    gpus_per_node: int
    gpu: Gpu

    @property
    def world(self) -> int:
        """All GPUs."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True)
class Candidate:
    """A layout that fits, with what it needs and takes."""

    layout: Layout
    work: Workload
    """The work as it is done under this layout: micro batch, rollout engine, savings of memory."""
    memory: Forecast
    time: StepTime
    tight: bool
    """Whether it leaves less than `HEADROOM`, or fits only if the forecast is too high, within its band."""


@dataclass(frozen=True)
class Rejected:
    """A family of layouts, of one TP and PP, of which none is left, and why."""

    tensor: int
    pipeline: int
    why: str
    buildable: bool = True
    """Whether Megatron would take it."""


@dataclass(frozen=True)
class Ranking:
    """What the planner found; `fitting` has the fastest first, and last what fits only if the forecast is too high."""

    fitting: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]


def plan_layouts(model: Architecture, machine: Machine, work: Workload) -> Ranking:
    """Rank all layouts; micro batch, rollout engine and savings of memory are chosen for each."""
    variants = []
    for share, switches in SAVINGS:
        with_switches = replace(work, rollout_share=share, **switches)
        if (variant := _with_engine(model, machine, with_switches)) is not None:
            variants.append(variant)

    if not variants:
        return _no_engine(max(share for share, _ in SAVINGS))

    def ways(layout: Layout) -> list[Workload]:
        sizes = _micro_batches(layout, work)
        return [variant.with_micro_batch(responses) for variant in variants for responses in sizes]

    return _rank(model, machine, work, ways, uneven_stages=True)


def plan_layouts_as_given(model: Architecture, machine: Machine, work: Workload) -> Ranking:
    """Rank the layouts that section `parallel` of a run can say; of the work, the rollout's TP alone is chosen."""
    given = _with_engine(model, machine, work)
    if given is None:
        return _no_engine(work.rollout_share)

    def ways(layout: Layout) -> list[Workload]:
        responses = work.mini_batch * work.samples // layout.data
        rounds = layout.pipeline if layout.virtual_pipeline else 1
        fixed = work.micro_responses
        return [given] if fixed is None or responses % (fixed * rounds) == 0 else []

    return _rank(model, machine, given, ways, uneven_stages=False)


def _no_engine(share: float) -> Ranking:
    why = f"no rollout engine of up to {LARGEST_ROLLOUT} GPUs holds weights and one sequence in {share:.0%} of them"
    return Ranking((), (Rejected(1, 1, why),))


def layouts(model: Architecture, machine: Machine, work: Workload) -> Iterator[Layout]:
    """Yield every layout that is tried."""
    for tensor, pipeline in _families(machine):
        family = _stages(model, tensor, pipeline, machine.world, uneven=True)
        if isinstance(family, Layout):
            yield from _members(model, machine, work, family)


def _families(machine: Machine) -> Iterator[tuple[int, int]]:
    """Yield tensor and pipeline parallel sizes; tensor parallelism stays within a node."""
    for tensor in divisors(machine.gpus_per_node):
        for pipeline in divisors(machine.world // tensor):
            if pipeline <= LONGEST_PIPELINE:
                yield tensor, pipeline


def _rank(
    model: Architecture,
    machine: Machine,
    work: Workload,
    ways: Callable[[Layout], Sequence[Workload]],
    uneven_stages: bool,
) -> Ranking:
    """Try each layout in several `ways`, which begin with what costs least and end with what saves most memory."""
    fitting: list[Candidate] = []
    rejected: list[Rejected] = []
    for tensor, pipeline in _families(machine):
        family = _stages(model, tensor, pipeline, machine.world, uneven_stages)
        if isinstance(family, str):
            rejected.append(Rejected(tensor, pipeline, family, buildable=False))
            continue
        found, why = _best_of_family(model, machine, work, family, ways)
        fitting += found
        if not found:
            rejected.append(Rejected(tensor, pipeline, why))
    memory = machine.gpu.memory
    fitting.sort(key=lambda one: (one.memory.peak.total > memory, one.tight, one.time.total, one.layout.model_ranks))
    return Ranking(tuple(fitting), tuple(rejected))


def _stages(model: Architecture, tensor: int, pipeline: int, world: int, uneven: bool) -> Layout | str:
    """Return the simplest layout of a family, or why Megatron takes none of it.

    Layers that do not divide by the stages are spread with shorter first and last stages, where that is asked for.
    """
    layout = Layout(world=world, tensor=tensor, pipeline=pipeline, sequence=tensor > 1)
    if uneven and model.layers % pipeline and pipeline < model.layers:
        middle = -(-model.layers // pipeline)
        ends = model.layers - (pipeline - 2) * middle
        if ends >= 2:
            layout = replace(layout, first_stage_layers=-(-ends // 2), last_stage_layers=ends // 2)
    if model.experts:
        layout = replace(layout, expert_tensor=1)
    for fault in faults(layout, model):
        return fault.why
    return layout


def _best_of_family(
    model: Architecture,
    machine: Machine,
    work: Workload,
    family: Layout,
    ways: Callable[[Layout], Sequence[Workload]],
) -> tuple[list[Candidate], str]:
    """Return what fits of one TP and PP, or why nothing does."""
    found = []
    undivided = False
    least: tuple[float, str] | None = None
    for layout in _members(model, machine, work, family):
        options = ways(layout)
        if not options:
            undivided = True
            continue
        # most layouts that do not fit are dropped by what saves most
        option = options[-1]
        memory = _forecast(model, machine, layout, option)
        if not _fits(memory, machine, work):
            short = memory.peak.total, memory.peak.name
            least = min(least, short) if least else short
            continue
        for cheaper in options[:-1]:
            needed = _forecast(model, machine, layout, cheaper)
            if _fits(needed, machine, work) and not _is_tight(needed, machine):
                option, memory = cheaper, needed
                break
        time = step_time(model, layout, option, machine.gpu, machine.gpus_per_node, memory.cache_tokens)
        found.append(Candidate(layout, option, memory, time, _is_tight(memory, machine)))
    if least is None and undivided:
        return found, f"micro batches of {work.micro_responses} responses do not divide what its ranks get"
    if least is None:
        return found, f"{work.mini_batch} prompts x {work.samples} responses do not divide over its ranks"
    why = f"its phase {least[1]} needs {least[0] / GIB:.0f} GiB at least, of {machine.gpu.memory / GIB:.0f}"
    return found, why


def _members(model: Architecture, machine: Machine, work: Workload, family: Layout) -> Iterator[Layout]:
    """Yield the family with every context, virtual pipeline and expert size."""
    ranks = machine.world // (family.tensor * family.pipeline)
    for context in divisors(ranks):
        # a sequence is cut into 2 x CP pieces (megatron/core/utils.py, get_batch_on_this_cp_rank); under a few hundred
        # tokens each, there is nothing to gain
        if context > 1 and (context > LARGEST_CONTEXT or work.length // (2 * context) < 512):
            continue
        responses, left = divmod(work.mini_batch * work.samples, ranks // context)
        if left or not responses:
            continue
        for expert, expert_tensor in _expert_sizes(model, family):
            layout = replace(family, context=context, expert=expert, expert_tensor=expert_tensor)
            if not any(faults(layout, model)):
                yield layout
                yield from _interleaved(model, layout, responses)


def _interleaved(model: Architecture, layout: Layout, responses: int) -> Iterator[Layout]:
    """Yield the layout with model chunks, where its micro batches can make whole rounds of the stages."""
    if layout.pipeline == 1 or responses % layout.pipeline:
        return
    for chunks in divisors(stage_layers(model.layers, layout)[0])[1:]:
        candidate = replace(layout, virtual_pipeline=chunks)
        if not any(faults(candidate, model)):
            yield candidate


def _expert_sizes(model: Architecture, family: Layout) -> list[tuple[int, int | None]]:
    if not model.experts:
        return [(1, None)]
    tensors = sorted({1, family.tensor})
    return [(expert, tensor) for expert in divisors(model.experts) for tensor in tensors]


def _micro_batches(layout: Layout, work: Workload) -> list[int]:
    """Return the sizes of micro batches that divide a rank's responses, in responses, largest first."""
    responses = work.mini_batch * work.samples // layout.data
    rounds = layout.pipeline if layout.virtual_pipeline else 1
    return [
        size
        for size in MICRO_BATCHES
        if responses % (size * rounds) == 0 and (size == 1 or size * work.length <= ENOUGH_MICRO_TOKENS)
    ]


def _with_engine(model: Architecture, machine: Machine, work: Workload) -> Workload | None:
    """Return the work with the rollout engine's fastest tensor parallel size; None where no size holds the model."""
    sizes = [
        replace(work, rollout_tensor=size)
        for size in divisors(machine.world)
        if model.heads % size == 0 and size <= LARGEST_ROLLOUT
    ]
    links = Links(machine.gpu, machine.gpus_per_node)
    times = {}
    for sized in sizes:
        held = cache_tokens(model, sized, machine.gpu.memory)
        if held >= work.length:
            times[sized.rollout_tensor] = rollout_time(model, sized, machine.gpu, machine.world, held, links), sized
    return min(times.values(), key=lambda pair: pair[0])[1] if times else None


def _forecast(model: Architecture, machine: Machine, layout: Layout, work: Workload) -> Forecast:
    return forecast(model, layout, work, machine.gpu.memory, machine.gpus_per_node)


def _fits(memory: Forecast, machine: Machine, work: Workload) -> bool:
    return not memory.exceeds(machine.gpu.memory) and memory.cache_tokens >= work.length


def _is_tight(memory: Forecast, machine: Machine) -> bool:
    return memory.peak.total > (1 - HEADROOM) * machine.gpu.memory
