"""Rules of memory: what does not fit a GPU by a forecast that errs by no more than its band."""

from collections.abc import Iterator

from slipway.config.verl import ACTOR, ROLLOUT
from slipway.preflight.findings import Finding
from slipway.preflight.planning.calibration import GIB, MEMORY_BAND
from slipway.preflight.planning.memory import Forecast, cache_tokens, forecast
from slipway.preflight.planning.workload import Workload, workload_of
from slipway.preflight.subject import Subject

# verl key that a phase hangs on most, and what works instead
_LEVERS = {
    "update": (f"{ACTOR}.ppo_micro_batch_size_per_gpu", "smaller micro batches, recompute_granularity=full"),
    "log-probabilities": (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", "smaller micro batches"),
}
_SHARE = f"{ROLLOUT}.gpu_memory_utilization"


def forecast_of(subject: Subject) -> tuple[Workload, Forecast] | None:
    """Return the forecast of a training that no other rule refuses; None where too little is known."""
    model, layout, memory, gpus = (
        subject.model,
        subject.layout,
        subject.gpu_memory,
        subject.count("trainer.n_gpus_per_node"),
    )
    work = workload_of(subject)
    if model is None or layout is None or memory is None or gpus is None or work is None:
        return None
    return work, forecast(model, layout, work, memory, gpus)


def check(subject: Subject) -> Iterator[Finding]:
    """Yield phases that do not fit a GPU, or may not."""
    known = forecast_of(subject)
    if known is None or subject.model is None or subject.gpu_memory is None:
        return
    work, needed = known
    memory = subject.gpu_memory
    # the band once more: weights are exact, what the engine keeps beside them is not
    if cache_tokens(subject.model, work, memory * (1 + MEMORY_BAND)) < work.length:
        yield subject.error(
            "S17",
            _SHARE,
            f"beside the weights there is no room for the keys and values of one sequence of {work.length} tokens.",
            "Use a larger share, or a larger tensor_model_parallel_size of the rollout engine.",
        )
        return
    peak = needed.peak
    key, levers = _LEVERS.get(
        peak.name, (_SHARE, "a smaller share for the rollout engine, param_offload and optimizer_offload")
    )
    amount = f"phase {peak.name} is forecast to need {peak.total / GIB:.1f} GiB of the GPU's {memory / GIB:.0f}"
    remedy = f"More model parallelism, {levers}; the table of preflight.md has every term."
    if needed.exceeds(memory):
        yield subject.error("S16", key, f"{amount}: too much even if that is {MEMORY_BAND:.0%} too high.", remedy)
    elif needed.may_exceed(memory):
        yield subject.warning("S16", key, f"{amount}: it may not fit.", remedy)
