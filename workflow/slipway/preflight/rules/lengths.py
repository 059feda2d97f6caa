"""Rules of sequence lengths: prompt, response, what the rollout engine holds, what a micro batch holds."""

from collections.abc import Iterator

from slipway.config.verl import ACTOR, REF, ROLLOUT
from slipway.preflight.findings import Finding
from slipway.preflight.subject import MEGATRON, ROLLOUT_ENGINES, Subject

LIMIT = f"{ROLLOUT}.max_model_len"


def check(subject: Subject) -> Iterator[Finding]:
    """Yield limits that end a training late, or shorten responses without a word."""
    longest = subject.sequence_limit
    if longest is None:
        return
    yield from _engine(subject, longest)
    yield from _token_limits(subject, longest)
    if not subject.measures_data and subject.get("data.filter_overlong_prompts") is False:
        # verl/experimental/agent_loop/agent_loop.py: longer prompts are cut from the left, which a log line says
        yield subject.warning(
            "R43",
            "data.filter_overlong_prompts",
            "prompts longer than data.max_prompt_length are cut from the left; data.truncation is not read.",
            "Set it to true unless the data is filtered.",
        )


def _engine(subject: Subject, longest: int) -> Iterator[Finding]:
    limit, model = subject.count(LIMIT), subject.model
    if limit is not None and limit < longest:
        # verl/workers/rollout/vllm_rollout/vllm_async_server.py:593-619
        yield subject.error(
            "R42",
            LIMIT,
            f"is less than prompt and response together ({longest} tokens): responses would be cut short silently.",
            f"Use at least {longest}.",
        )
    if model is not None and model.window is not None and longest > model.window:
        # mbridge passes no window on (mbridge/core/llm_bridge.py)
        yield subject.error(
            "S20",
            "data.max_response_length",
            f"prompt and response are {longest} tokens together; the model's layers attend to the last {model.window} "
            "only, which Megatron's do not know: trainer and rollout would compute different things.",
            f"Make them at most {model.window} together, or use a model without sliding_window.",
        )
    if model is None or subject.get(f"{ROLLOUT}.name") not in ROLLOUT_ENGINES:
        return  # the CPU backend computes any position
    if limit is not None and limit > max(longest, model.max_positions):
        # verl/workers/rollout/vllm_rollout/vllm_async_server.py:1107
        yield subject.error(
            "R42",
            LIMIT,
            f"the model's positions end at {model.max_positions}.",
            f"Use at most {model.max_positions}.",
        )
    elif longest > model.max_positions:
        yield subject.error(
            "R42",
            "data.max_response_length",
            f"prompt and response are {longest} tokens together; the model's positions end at {model.max_positions}.",
            f"Make them at most {model.max_positions} together.",
        )


def _token_limits(subject: Subject, longest: int) -> Iterator[Finding]:
    """With dynamic batching the longest sequence has to fit into one micro batch."""
    context = subject.count(f"{MEGATRON}.context_parallel_size")
    if context is None:
        return
    dynamic = {
        f"{ACTOR}.ppo_max_token_len_per_gpu": subject.is_dynamic,
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu": subject.is_dynamic,
        f"{REF}.log_prob_max_token_len_per_gpu": subject.has_reference
        and subject.get(f"{REF}.log_prob_use_dynamic_bsz") is True,
    }
    for key, used in dynamic.items():
        tokens = subject.count(key)
        if used and tokens is not None and tokens * context < longest:
            # verl/utils/seqlen_balancing.py:384, when the first such response appears
            held = f"{tokens} tokens x CP {context}" if context > 1 else f"{tokens} tokens"
            yield subject.error(
                "R20",
                key,
                f"a micro batch of {held} does not hold the longest sequence ({longest} tokens).",
                f"Use at least {-(-longest // context)}.",
            )
