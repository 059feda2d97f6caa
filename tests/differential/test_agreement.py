"""Slipway refuses what verl and Megatron-core refuse, and nothing else; `make differential` draws more cases."""

from dataclasses import replace

import pytest

from differential.draw import ACTOR, FIRST, LAST, LENGTH, MEGATRON, REF, ROLLOUT, Case, draw
from differential.reality import ask
from differential.verdict import judge
from slipway.models.architecture import Architecture

pytestmark = pytest.mark.verl
CASES = 200
TOKENS = {
    f"{ACTOR}.use_dynamic_bsz": True,
    f"{ROLLOUT}.log_prob_use_dynamic_bsz": True,
    f"{REF}.log_prob_use_dynamic_bsz": True,
    f"{ACTOR}.ppo_max_token_len_per_gpu": LENGTH,
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu": 3 * LENGTH,
    f"{REF}.log_prob_max_token_len_per_gpu": 3 * LENGTH,
}
FIRST_SEED = 1000


def answers(seeds: range) -> list[bool]:
    """Return whether the stack takes each case; fails where Slipway says otherwise."""
    accepted = []
    for seed in seeds:
        case = draw(seed)
        answer, found = ask(case), judge(case)
        assert answer.accepts == (not found), (case, answer, found)
        accepted.append(answer.accepts)
    return accepted


def test_thirty_random_cases_get_the_same_answer():
    """What `make check` has the time for."""
    assert len(answers(range(FIRST_SEED - 30, FIRST_SEED))) == 30


def test_random_cases_get_the_same_answer():
    accepted = answers(range(FIRST_SEED, FIRST_SEED + CASES))
    assert 0.3 < sum(accepted) / CASES < 0.7  # a test that only ever sees one answer shows nothing


def _case(model: dict[str, object], keys: dict[str, int]) -> Case:
    """Return a dense model on eight ranks with TP 2 that runs, changed."""
    dense = Architecture(
        name="Qwen2ForCausalLM", layers=4, hidden_size=32, heads=4, kv_heads=2, head_dim=8, intermediate_size=64,
        vocab_size=96, max_positions=64, tied_embeddings=False,
    )  # fmt: skip
    defaults = {
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": 8,
        "data.train_batch_size": 8,
        f"{ROLLOUT}.prompt_length": LENGTH // 2,
        f"{ROLLOUT}.response_length": LENGTH // 2,
        f"{ROLLOUT}.n": 4,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 2,
        f"{ACTOR}.ppo_mini_batch_size": 8,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2,
        f"{MEGATRON}.tensor_model_parallel_size": 2,
        f"{MEGATRON}.pipeline_model_parallel_size": 1,
        f"{MEGATRON}.virtual_pipeline_model_parallel_size": None,
        f"{MEGATRON}.context_parallel_size": 1,
        f"{MEGATRON}.expert_model_parallel_size": 1,
        f"{MEGATRON}.expert_tensor_parallel_size": None,
    }
    return Case(0, replace(dense, **model), defaults | keys)


@pytest.mark.parametrize(
    ("model", "keys", "rule", "error"),
    [
        # the case that the others change
        ({}, {}, None, ""),
        # megatron/core/parallel_state.py:785 makes the groups of experts for a dense model too
        ({}, {f"{MEGATRON}.expert_tensor_parallel_size": 3}, "R2", "is not divisible by expert_tensor"),
        # megatron/core/tensor_parallel/layers.py:1166
        ({"intermediate_size": 63}, {}, "R52", "63 is not divisible by 2"),
        (
            {"name": "Qwen3MoeForCausalLM", "experts": 4, "expert_intermediate_size": 66},
            {f"{MEGATRON}.expert_tensor_parallel_size": 4},
            "R52",
            "is not divisible by 4",
        ),
        # verl/utils/config.py:124 looks at the step before the trainer fills it up
        ({}, {"data.train_batch_size": 9, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 8}, "R15", "must be divisible by"),
        # verl/workers/engine/megatron/transformer_impl.py:916
        (
            {},
            {
                f"{MEGATRON}.pipeline_model_parallel_size": 2,
                f"{MEGATRON}.virtual_pipeline_model_parallel_size": 2,
                f"{ACTOR}.ppo_micro_batch_size_per_gpu": 16,
            },
            "R17",
            "must be divisible by num_batches_divided_by",
        ),
        # verl/utils/seqlen_balancing.py:445: micro batches by tokens, filled up to rounds of three stages
        (
            {"layers": 6},
            {
                "trainer.n_gpus_per_node": 24,
                "data.train_batch_size": 2,
                f"{ACTOR}.ppo_mini_batch_size": 2,
                f"{MEGATRON}.pipeline_model_parallel_size": 3,
                f"{MEGATRON}.virtual_pipeline_model_parallel_size": 2,
                **TOKENS,
            },
            "R17",
            "a rank has only 2 forced groups",
        ),
        # megatron/core/transformer/transformer_layer.py:86: no stage is left between the two that are named
        (
            {},
            {
                f"{MEGATRON}.pipeline_model_parallel_size": 2,
                f"{MEGATRON}.virtual_pipeline_model_parallel_size": 1,
                FIRST: 2,
                LAST: 2,
            },
            "R7",
            "ZeroDivisionError",
        ),
    ],
)  # fmt: skip
def test_what_random_cases_found(model, keys, rule, error):
    case = _case(model, keys)
    assert {finding.rule for finding in judge(case)} == ({rule} if rule else set())
    answer = ask(case)
    assert answer.accepts == (rule is None), answer
    assert error in answer.error
