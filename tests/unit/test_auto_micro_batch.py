"""`grpo.micro_batch_size: auto`: what fits by forecast and no more, and what a run that has begun keeps."""

from dataclasses import replace

import pytest

from slipway.config.schema import Grpo
from slipway.config.verl import MicroBatches, micro_batch_settings
from slipway.models.known import find_dimensions
from slipway.preflight.auto_micro_batch import (
    MOST_TOKENS,
    UNKNOWN_TOKENS,
    largest_micro_batches,
    micro_batches_on_cpu,
)
from slipway.preflight.planning.calibration import MEMORY_BAND
from slipway.preflight.planning.memory import forecast
from slipway.preflight.planning.workload import workload_of
from slipway.preflight.subject import Subject

LENGTH = 2048


def subject(model: str | None = "Qwen/Qwen2.5-1.5B", memory: float = 80, **more: object) -> Subject:
    keys = {
        "data.train_batch_size": 64,
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.rollout.prompt_length": 512,
        "actor_rollout_ref.rollout.response_length": LENGTH - 512,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 32,
        "actor_rollout_ref.actor.use_kl_loss": True,
        **{f"actor_rollout_ref.actor.megatron.{name}_parallel_size": 1 for name in PARALLEL},
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": 1,
    }
    keys |= micro_batch_settings(MicroBatches(LENGTH, LENGTH, by_tokens=True))
    return Subject(keys | more, find_dimensions(model) if model else None, gpu_memory=memory * 2**30)


PARALLEL = ("tensor_model", "pipeline_model", "context", "expert_model")


def phases(asked: Subject, chosen: MicroBatches) -> dict[str, float]:
    work = replace(workload_of(asked), micro_tokens=chosen.update, log_prob_tokens=chosen.log_prob)
    needed = forecast(asked.model, asked.layout, work, asked.gpu_memory, 1)
    return {phase.name: phase.total * (1 + MEMORY_BAND) for phase in needed.phases}


def test_the_most_that_fits_is_taken():
    asked = subject()
    chosen = largest_micro_batches(asked)
    assert chosen.by_tokens and LENGTH < chosen.update < chosen.log_prob <= MOST_TOKENS
    assert phases(asked, chosen)["update"] <= asked.gpu_memory
    assert phases(asked, replace(chosen, update=chosen.update + 1))["update"] > asked.gpu_memory


def test_more_memory_holds_more_up_to_what_keeps_a_gpu_busy():
    sizes = [largest_micro_batches(subject(memory=memory)).update for memory in (60, 80, 141, 1000)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[2]
    assert sizes[-1] == MOST_TOKENS


def test_where_nothing_fits_the_longest_sequence_is_left():
    # the rules of memory then say so
    assert largest_micro_batches(subject("Qwen/Qwen2.5-14B")).update == LENGTH


def test_no_pass_is_larger_than_what_a_rank_has_to_do():
    few = {
        "data.train_batch_size": 2,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
        "actor_rollout_ref.rollout.n": 2,
    }
    chosen = largest_micro_batches(subject("Qwen/Qwen2.5-0.5B", 1000, **few))
    assert (chosen.update, chosen.log_prob) == (2 * LENGTH, 4 * LENGTH)


def test_a_pipeline_gets_enough_passes_to_be_filled():
    two = {"trainer.n_gpus_per_node": 2, "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size": 2}
    alone, piped = (largest_micro_batches(subject("Qwen/Qwen2.5-0.5B", 1000, **more)) for more in ({}, two))
    # 256 responses an update, in eight passes
    assert piped.update == 256 // 8 * LENGTH <= alone.update


def test_context_parallel_ranks_share_the_tokens():
    two = {"trainer.n_gpus_per_node": 2, "actor_rollout_ref.actor.megatron.context_parallel_size": 2}
    assert largest_micro_batches(subject("Qwen/Qwen2.5-0.5B", 1000, **two)).update == MOST_TOKENS // 2


def test_an_unknown_model_gets_verls_own_size():
    assert largest_micro_batches(subject(None)).update == UNKNOWN_TOKENS


@pytest.mark.parametrize(("prompts", "samples", "ranks", "expected"), [(8, 8, 1, 64), (8, 8, 2, 32), (30, 5, 1, 50)])
def test_on_the_cpu_passes_divide_what_a_rank_has(prompts, samples, ranks, expected):
    grpo = Grpo(prompts_per_step=prompts, samples_per_prompt=samples)
    assert micro_batches_on_cpu(grpo, ranks) == MicroBatches(expected, expected)


def test_a_log_prob_size_needs_an_update_size():
    with pytest.raises(ValueError, match="log_prob_micro_batch_size: 4 responses, where micro_batch_size: auto"):
        Grpo(log_prob_micro_batch_size=4)
