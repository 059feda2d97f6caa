"""Rules of the rollout engine: its layout, memory and sampling."""

from collections.abc import Iterator

from slipway.config.verl import ROLLOUT, SEQUENCES_AT_ONCE
from slipway.preflight.findings import Finding, divisors, nearest
from slipway.preflight.subject import Subject

TENSOR = f"{ROLLOUT}.tensor_model_parallel_size"
# Above it, what the trainer leaves allocated while it sleeps no longer fits beside the engine.
CROWDED_SHARE = 0.9


def check(subject: Subject) -> Iterator[Finding]:
    """Yield what a rollout engine refuses after both models are loaded, and what samples nothing useful."""
    yield from _engine(subject)
    yield from _layout(subject)
    yield from _memory(subject)
    yield from _schedule(subject)
    yield from _sampling(subject)


def _engine(subject: Subject) -> Iterator[Finding]:
    name, mode = subject.get(f"{ROLLOUT}.name"), subject.get(f"{ROLLOUT}.mode")
    if name not in subject.engines:
        # verl/workers/rollout/base.py:106
        shown = "not set" if name in (None, "???") else f"no rollout engine of verl: {name!r}"
        yield subject.error("R23", f"{ROLLOUT}.name", f"{shown}.", "Use vllm, sglang or trtllm.")
    if mode != "async":
        # verl/workers/config/rollout.py:281, base.py:106
        yield subject.error("R23", f"{ROLLOUT}.mode", "verl 0.9 has asynchronous rollouts only.", "Leave it out.")


def _layout(subject: Subject) -> Iterator[Finding]:
    sizes = [subject.count(f"{ROLLOUT}.{part}") for part in ("data_parallel_size", "pipeline_model_parallel_size")]
    tensor, (data, pipeline), world = subject.count(TENSOR), sizes, subject.world
    if tensor is None or data is None or pipeline is None or world is None:
        return
    replica, gpus = tensor * data * pipeline, subject.count("trainer.n_gpus_per_node") or 1
    if world % replica:
        # verl/workers/engine_workers.py:659
        yield subject.error(
            "R22",
            TENSOR,
            f"an engine of {replica} GPUs (TP {tensor} x DP {data} x PP {pipeline}) does not divide the {world} ranks.",
            f"Use {nearest(tensor, divisors(world // data // pipeline or 1))}.",
        )
    elif replica % min(gpus, replica):
        # verl/workers/rollout/replica.py:114
        yield subject.error(
            "R22",
            TENSOR,
            f"an engine of {replica} GPUs does not fill whole nodes of {gpus}.",
            f"Use {nearest(tensor, divisors(gpus))}.",
        )
    if pipeline > 1:
        # verl/workers/config/rollout.py:319
        yield subject.error(
            "R23", f"{ROLLOUT}.pipeline_model_parallel_size", "verl's rollout engines have no pipeline.", "Use 1."
        )
    expert = subject.count(f"{ROLLOUT}.expert_parallel_size")
    if expert is not None and expert > 1 and expert != tensor * data and subject.get(f"{ROLLOUT}.name") != "trtllm":
        # verl/workers/config/rollout.py:295
        yield subject.error(
            "R23",
            f"{ROLLOUT}.expert_parallel_size",
            f"must be TP x DP of the engine, {tensor * data}.",
            f"Use {tensor * data}.",
        )
    if subject.model is not None and subject.model.heads % tensor:
        # vllm/config/model.py, verify_with_parallel_config
        yield subject.error(
            "R24",
            TENSOR,
            f"the model's {subject.model.heads} attention heads do not divide by it.",
            f"Use {nearest(tensor, divisors(subject.model.heads))}.",
        )


def _memory(subject: Subject) -> Iterator[Finding]:
    key = f"{ROLLOUT}.gpu_memory_utilization"
    share = subject.number(key)
    if share is not None and not 0 < share <= 1:
        # vllm/config/cache.py; verl passes it on unchecked
        yield subject.error(
            "R41", key, "is a share of a GPU's memory.", "Use a number above 0 and below 1, such as 0.5."
        )
    elif share is not None and share > CROWDED_SHARE and subject.get("actor_rollout_ref.hybrid_engine") is True:
        yield subject.warning(
            "R41", key, "leaves hardly any memory to the trainer, which shares the GPU.", "0.4 to 0.8 is usual."
        )
    if subject.get(f"{ROLLOUT}.free_cache_engine") is False:
        yield subject.warning(
            "R41",
            f"{ROLLOUT}.free_cache_engine",
            "the engine's weights and cache stay on the GPU while the model trains.",
            "Leave it true, unless everything fits at once.",
        )


def _schedule(subject: Subject) -> Iterator[Finding]:
    """vllm/config/scheduler.py, verify_max_model_len."""
    key, sequences = f"{ROLLOUT}.max_num_batched_tokens", subject.count(SEQUENCES_AT_ONCE)
    tokens, length = subject.count(key), subject.count(f"{ROLLOUT}.max_model_len")
    if tokens is None or subject.get(f"{ROLLOUT}.name") != "vllm":
        return
    if sequences is not None and tokens < sequences:
        yield subject.error(
            "S27",
            key,
            f"a pass of vLLM has room for a token of each of {sequences} sequences ({SEQUENCES_AT_ONCE}).",
            f"Use {sequences} or more.",
        )
    if length is not None and tokens < length and subject.get(f"{ROLLOUT}.enable_chunked_prefill") is False:
        yield subject.error(
            "S27",
            key,
            f"without chunked prefill a pass of vLLM takes whole prompts, of up to {length} tokens.",
            f"Use {length} or more.",
        )


def _sampling(subject: Subject) -> Iterator[Finding]:
    key = f"{ROLLOUT}.temperature"
    temperature = subject.number(key)
    if temperature is not None and temperature <= 0:
        yield subject.error(
            "S10",
            key,
            "all samples of a prompt would be the same, so that no response is better than another."
            if temperature == 0
            else "must be above 0.",
            "Use 1.0.",
        )
    nucleus = subject.number(f"{ROLLOUT}.top_p")
    if nucleus is not None and not 0 < nucleus <= 1:
        # vllm/sampling_params.py
        yield subject.error("S10", f"{ROLLOUT}.top_p", "is a share of probability.", "Use a number above 0, at most 1.")
    validation = f"{ROLLOUT}.val_kwargs"
    if subject.get(f"{validation}.do_sample") is True and (subject.number(f"{validation}.temperature") or 0) <= 0:
        yield subject.warning(
            "R46", f"{validation}.temperature", "validation is to sample, but at temperature 0.", "Use 1.0."
        )
