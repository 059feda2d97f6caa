"""Rules of memory: what does not fit a GPU by a forecast that errs by no more than its band."""

from collections.abc import Iterator

from slipway.config.verl import ACTOR, ROLLOUT
from slipway.models.architecture import Architecture
from slipway.models.sizes import model_parameters
from slipway.preflight.findings import Finding
from slipway.preflight.planning.calibration import GIB, MEMORY_BAND
from slipway.preflight.planning.memory import BF16, Forecast, cache_bytes_per_token, forecast
from slipway.preflight.planning.workload import Workload, workload_of
from slipway.preflight.subject import MEGATRON, TRANSFORMER, Subject

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
    model, memory = subject.model, subject.gpu_memory
    if (cramped := _rollout_share(subject, model, work, memory)) is not None:
        yield cramped
        return
    peak = needed.peak
    key, levers = _levers(subject, work, peak.name)
    amount = f"phase {peak.name} is forecast to need {peak.total / GIB:.1f} GiB of the GPU's {memory / GIB:.0f}"
    terms = ", ".join(f"{name} {size / GIB:.1f}" for name, size in peak.terms.items() if size / GIB >= 0.05)
    remedy = f"It is made of {terms} GiB. Use {levers}."
    if needed.exceeds(memory):
        why = f"{amount}: too much even if that is {MEMORY_BAND:.0%} too high."
        yield subject.error("S16", key, why, remedy)
    elif needed.may_exceed(memory):
        yield subject.warning("S16", key, f"{amount}: it may not fit.", remedy)


def _rollout_share(subject: Subject, model: Architecture, work: Workload, memory: float) -> Finding | None:
    """Return what is exact: weights, and keys and values of one sequence, against the share that the launch names."""
    if subject.count(f"{ROLLOUT}.expert_parallel_size") not in (None, 1):
        return None
    share = work.rollout_share * memory
    weights = BF16 * model_parameters(model).total / work.rollout_tensor
    sequence = work.length * cache_bytes_per_token(model, work.rollout_tensor)
    if weights + sequence <= share:
        return None
    return subject.error(
        "S17",
        _SHARE,
        f"{share / GIB:.1f} GiB do not hold a rank's weights ({weights / GIB:.1f}) and the keys and values of one "
        f"sequence of {work.length} tokens ({sequence / GIB:.1f}).",
        "Use a larger share, or a larger tensor_model_parallel_size of the rollout engine.",
    )


def _levers(subject: Subject, work: Workload, phase: str) -> tuple[str, str]:
    """Return the verl key that a phase hangs on most, and what would make it smaller."""
    if phase in ("update", "log-probabilities"):
        update = phase == "update"
        role, what = (f"{ACTOR}.ppo", "update") if update else (f"{ROLLOUT}.log_prob", "pass")
        tokens = work.micro_tokens if update else work.log_prob_tokens
        levers = ["more tensor, pipeline or context parallelism"]
        if tokens > work.length:
            levers.append(f"smaller micro batches of the {what}")
        if update and work.recompute is None:
            how = "recompute_granularity=full, recompute_method=uniform, recompute_num_layers=1"
            levers.append(f"recomputation (all three of {TRANSFORMER}: {how})")
        if update and not work.optimizer_on_cpu:
            levers.append(f"+{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload=True")
        key = f"{role}_max_token_len_per_gpu" if subject.is_dynamic else f"{role}_micro_batch_size_per_gpu"
        return key, ", or ".join(levers)
    if phase == "weight transfer":
        key = f"{ROLLOUT}.tensor_model_parallel_size"
        return key, "a larger one, or more model parallelism of the trainer"
    if phase == "save":
        return f"{MEGATRON}.optimizer_offload", "more model parallelism, or more data-parallel ranks"
    levers = ["a smaller share for the rollout engine"]
    if not (work.param_offload and work.optimizer_offload):
        levers.append(f"{MEGATRON}.param_offload=True and {MEGATRON}.optimizer_offload=True")
    return _SHARE, ", or ".join([*levers, "more model parallelism"])
