"""Every rule finds its mistake, with the key and what would work; what is right has no finding."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from slipway.config.schema import Run
from slipway.config.verl import flatten, merge
from slipway.models.architecture import Architecture
from slipway.models.known import find_dimensions
from slipway.models.layout import Layout
from slipway.preflight.findings import Finding, Severity, as_markdown, as_text, divisors, errors
from slipway.preflight.rules import check
from slipway.preflight.rules.batches import arithmetic
from slipway.preflight.rules.divisibility import faults
from slipway.preflight.subject import Subject

# Short for the tests; no key of verl begins like that.
SECTIONS = {
    "transformer": "actor_rollout_ref.actor.megatron.override_transformer_config",
    "megatron": "actor_rollout_ref.actor.megatron",
    "actor": "actor_rollout_ref.actor",
    "ref": "actor_rollout_ref.ref",
    "rollout": "actor_rollout_ref.rollout",
}
# A sound GRPO training of a 7B model on one node of eight GPUs.
SOUND = {
    "actor_rollout_ref.model.path": "/model",
    "algorithm.adv_estimator": "grpo",
    "critic.enable": False,
    "data.filter_overlong_prompts": True,
    "data.train_batch_size": 64,
    "rollout.name": "vllm",
    "rollout.n": 8,
    "rollout.tensor_model_parallel_size": 2,
    "rollout.log_prob_micro_batch_size_per_gpu": 8,
    "ref.log_prob_micro_batch_size_per_gpu": 8,
    "actor.ppo_mini_batch_size": 32,
    "actor.ppo_micro_batch_size_per_gpu": 8,
    "actor.use_kl_loss": True,
    "trainer.save_freq": 20,
    "trainer.total_training_steps": 100,
}


def model(layers=28, heads=28, kv_heads=4, vocab=152064, hidden=3584, intermediate=18944, experts=0) -> Architecture:
    return Architecture(
        name="Qwen2ForCausalLM", layers=layers, hidden_size=hidden, heads=heads, kv_heads=kv_heads,
        head_dim=hidden // heads, intermediate_size=intermediate, vocab_size=vocab, max_positions=32768,
        tied_embeddings=False, experts=experts,
        expert_intermediate_size=intermediate if experts else 0,
    )  # fmt: skip


def full(key: str) -> str:
    section, dot, rest = key.partition(".")
    return SECTIONS.get(section, section) + dot + rest


def in_full(settings: dict) -> dict:
    return {full(key): value for key, value in settings.items()}


@cache
def sound() -> dict:
    return flatten(merge(in_full(SOUND)))


def judged(changes: dict, architecture: Architecture | None = None, **known) -> list[Finding]:
    """Changes are laid over the resolved config: what interpolates is changed with its source here."""
    return check(Subject(sound() | in_full(changes), architecture or model(), **known))


def rules(found: list[Finding]) -> list[str]:
    return [finding.rule for finding in errors(found)]


def run(nodes=1, gpus=8, **changes) -> Run:
    return Run(model="m", data="d", evaluation=["e"], steps=10, nodes=nodes, gpus_per_node=gpus, **changes)


def test_a_sound_training_has_no_finding():
    assert judged({}) == []


@pytest.mark.parametrize(
    ("sizes", "architecture", "expected", "remedy"),
    [
        ({"tensor": 2, "pipeline": 2}, model(), [], ""),
        ({"tensor": 8}, model(), ["R4"], "1 or 2 or 4"),
        ({"tensor": 3}, model(), ["R1", "R4", "R52"], "2 or 4"),
        ({"tensor": 4}, model(heads=28, kv_heads=7), ["R5"], "1 or 7 or 14"),
        ({"pipeline": 8}, model(), ["R6"], "4 or 7"),
        ({"pipeline": 4}, model(layers=30), ["R6"], "3 or 5"),
        ({"pipeline": 4, "first_stage_layers": 6}, model(layers=30), [], ""),
        ({"pipeline": 4, "first_stage_layers": 7}, model(layers=30), ["R6"], "first and last stage"),
        ({"pipeline": 4, "first_stage_layers": 7, "last_stage_layers": 5}, model(layers=30), [], ""),
        ({"pipeline": 2, "first_stage_layers": 20, "last_stage_layers": 11}, model(layers=30), ["R6"], ""),
        ({"pipeline": 2, "first_stage_layers": 30}, model(layers=30), ["R6"], ""),
        ({"pipeline": 4, "embedding_as_layer": True, "loss_as_layer": True}, model(layers=30), [], ""),
        ({"pipeline": 4, "embedding_as_layer": True}, model(layers=30), ["R6"], "1 or 31"),
        ({"pipeline": 2, "first_stage_layers": 14, "loss_as_layer": True}, model(), ["R6"], "one of the two"),
        ({"tensor": 4, "pipeline": 4}, model(), ["R1"], "8"),
        ({"virtual_pipeline": 2}, model(), ["R7"], "pipeline above 1"),
        ({"pipeline": 2, "virtual_pipeline": 12}, model(layers=20), ["R7"], "10"),
        ({"pipeline": 2, "virtual_pipeline": 7}, model(), [], ""),
        ({"pipeline": 2, "virtual_pipeline": 2, "first_stage_layers": 13}, model(), ["R7"], "1 or 13"),
        ({"expert": 4}, model(), ["R8"], "Use 1."),
        ({"expert": 3}, model(experts=128), ["R2", "R8"], "2 or 4"),
        ({"tensor": 8, "expert": 4}, model(heads=32, kv_heads=8, experts=128), ["R2"], "ETP to 1"),
        ({"tensor": 8, "expert": 8, "expert_tensor": 1}, model(heads=32, kv_heads=8, experts=128), [], ""),
        ({"tensor": 2, "sequence": False}, model(heads=32, kv_heads=8, experts=128), ["R11"], "true"),
        ({"tensor": 2, "sequence": False}, model(), [], ""),
        ({"expert_tensor": 3}, model(), ["R2"], "ETP to 1"),
        ({"tensor": 2}, model(vocab=50257), ["R9"], "Use 1"),
        ({"tensor": 2}, model(intermediate=18943), ["R52"], "Use 1"),
        ({"expert": 2, "expert_tensor": 4}, model(heads=32, kv_heads=8, experts=8, intermediate=66), ["R52"], "2 or 3"),
    ],
)  # fmt: skip
def test_what_megatron_makes_of_a_layout(sizes, architecture, expected, remedy):
    layout = Layout(world=8, **({"sequence": sizes.get("tensor", 1) > 1} | sizes))
    found = list(faults(layout, architecture))
    assert [fault.rule for fault in found] == expected
    if expected:
        assert any(remedy in fault.remedy for fault in found), [fault.remedy for fault in found]


@pytest.mark.parametrize(
    ("changes", "rule", "key", "remedy"),
    [
        (
            {"megatron.tensor_model_parallel_size": 8, "ref.megatron.tensor_model_parallel_size": 8},
            "R4",
            "megatron.tensor_model_parallel_size",
            "1 or 2 or 4",
        ),
        (
            {"megatron.dynamic_context_parallel": True},
            "R12",
            "megatron.dynamic_context_parallel",
            "context_parallel_size",
        ),
        ({"ref.megatron.tensor_model_parallel_size": 2}, "R25", "ref.megatron.tensor_model_parallel_size", "Use 1"),
        ({"actor.ppo_mini_batch_size": 128}, "R14", "actor.ppo_mini_batch_size", "at most 64"),
        ({"data.train_batch_size": 50, "actor.ppo_mini_batch_size": 32}, "R15", "data.train_batch_size", "multiple"),
        ({"actor.ppo_mini_batch_size": 5, "rollout.n": 3}, "R16", "actor.ppo_mini_batch_size", "8"),
        ({"actor.ppo_micro_batch_size_per_gpu": 7}, "R17", "actor.ppo_micro_batch_size_per_gpu", "4 or 8"),
        (
            {"rollout.log_prob_micro_batch_size_per_gpu": 48},
            "R17",
            "rollout.log_prob_micro_batch_size_per_gpu",
            "32 or 64",
        ),
        ({"ref.log_prob_micro_batch_size_per_gpu": 48}, "R17", "ref.log_prob_micro_batch_size_per_gpu", "32 or 64"),
        ({"actor.ppo_micro_batch_size_per_gpu": None}, "R19", "actor.ppo_micro_batch_size_per_gpu", "use_dynamic_bsz"),
        ({"actor.ppo_micro_batch_size": 8}, "R19", "actor.ppo_micro_batch_size", "Leave this one out"),
        (
            {"rollout.log_prob_micro_batch_size_per_gpu": None, "rollout.log_prob_micro_batch_size": 8},
            "R19",
            "rollout.log_prob_micro_batch_size",
            "_per_gpu",
        ),
        (
            {
                "actor.use_dynamic_bsz": True,
                "rollout.log_prob_use_dynamic_bsz": True,
                "actor.ppo_max_token_len_per_gpu": 512,
            },
            "R20",
            "actor.ppo_max_token_len_per_gpu",
            "at least 1024",
        ),
        ({"actor.use_dynamic_bsz": True}, "R21", "rollout.log_prob_use_dynamic_bsz", "Leave it out"),
        ({"rollout.tensor_model_parallel_size": 16}, "R22", "rollout.tensor_model_parallel_size", "4 or 8"),
        ({"rollout.pipeline_model_parallel_size": 2}, "R23", "rollout.pipeline_model_parallel_size", "Use 1"),
        ({"rollout.expert_parallel_size": 4}, "R23", "rollout.expert_parallel_size", "Use 2"),
        ({"rollout.mode": "sync"}, "R23", "rollout.mode", "Leave it out"),
        ({"rollout.name": "vlm"}, "R23", "rollout.name", "vllm"),
        ({"rollout.tensor_model_parallel_size": 8}, "R24", "rollout.tensor_model_parallel_size", "4 or 7"),
        ({"megatron.use_mbridge": False}, "R26", "megatron.use_mbridge", "true"),
        ({"megatron.use_dist_checkpointing": True}, "R27", "megatron.dist_checkpointing_path", "Set it"),
        ({"megatron.dtype": "float32"}, "R28", "megatron.dtype", "bfloat16"),
        ({"transformer.fp16": True}, "R28", "transformer.fp16", "dtype"),
        ({"transformer.recompute_granularity": "all"}, "R31", "transformer.recompute_granularity", "full"),
        (
            {"transformer.recompute_granularity": "full", "transformer.recompute_num_layers": 1},
            "R31",
            "transformer.recompute_method",
            "uniform",
        ),
        (
            {"transformer.recompute_granularity": "full", "transformer.recompute_method": "uniform"},
            "R31",
            "transformer.recompute_num_layers",
            "Use 1",
        ),
        (
            {"transformer.recompute_granularity": "selective", "transformer.recompute_num_layers": 1},
            "R31",
            "transformer.recompute_num_layers",
            "null",
        ),
        (
            {"transformer.recompute_granularity": "selective", "transformer.recompute_modules": ["attn"]},
            "R31",
            "transformer.recompute_modules",
            "core_attn",
        ),
        (
            {"transformer.cpu_offloading": True, "transformer.recompute_granularity": "selective"},
            "R32",
            "transformer.cpu_offloading",
            "one of the two",
        ),
        (
            {"transformer.moe_token_dispatcher_type": "alltoal"},
            "R33",
            "transformer.moe_token_dispatcher_type",
            "alltoall",
        ),
        ({"transformer.moe_token_dispatcher_type": "flex"}, "R33", "transformer.moe_token_dispatcher_type", "alltoall"),
        ({"transformer.moe_enable_deepep": True}, "R33", "transformer.moe_enable_deepep", "flex"),
        ({"algorithm.adv_estimator": "gpro"}, "R36", "algorithm.adv_estimator", "grpo"),
        ({"rollout.n": 1}, "R37", "rollout.n", "at least 2"),
        ({"actor.kl_loss_type": "reverse_kl"}, "R38", "actor.kl_loss_type", "low_var_kl"),
        (
            {"actor.use_kl_loss": False, "algorithm.use_kl_in_reward": True, "algorithm.kl_penalty": "full"},
            "R38",
            "algorithm.kl_penalty",
            "low_var_kl",
        ),
        ({"actor.loss_agg_mode": "mean"}, "R40", "actor.loss_agg_mode", "token-mean"),
        ({"actor.policy_loss.loss_mode": "ppo"}, "R40", "actor.policy_loss.loss_mode", "vanilla"),
        ({"rollout.gpu_memory_utilization": 1.7}, "R41", "rollout.gpu_memory_utilization", "0.5"),
        ({"rollout.max_model_len": 600}, "R42", "rollout.max_model_len", "at least 1024"),
        ({"rollout.max_model_len": 65536}, "R42", "rollout.max_model_len", "at most 32768"),
        ({"rollout.response_length": 40000}, "R42", "data.max_response_length", "at most 32768"),
        ({"actor.checkpoint.save_contents": ["model", "optim"]}, "R44", "actor.checkpoint.save_contents", "optimizer"),
        ({"trainer.resume_mode": "always"}, "R45", "trainer.resume_mode", "auto"),
        (
            {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "/x/step_3"},
            "R45",
            "trainer.resume_from_path",
            "global_step_",
        ),
        ({"actor.optim.lr_warmup_steps": 100}, "R47", "actor.optim.lr_warmup_steps", "less than 100"),
        ({"actor.optim.lr_decay_style": "cosin"}, "R47", "actor.optim.lr_decay_style", "cosine"),
        ({"reward_model.reward_manager": "dapo"}, "R48", "reward_model.reward_manager", "reward.reward_manager.name"),
        (
            {"custom_reward_function.path": "r.py"},
            "R48",
            "custom_reward_function.path",
            "reward.custom_reward_function.path",
        ),
        ({"actor.use_kl_loss": "maybe"}, "R51", "actor.use_kl_loss", "Use false"),
        ({"megatron.pipeline_model_parallel_size": 0}, "R51", "megatron.pipeline_model_parallel_size", ""),
        ({"actor.optim.lr": "1e-6"}, "R51", "actor.optim.lr", ""),
        ({"rollout.temperature": 0}, "S10", "rollout.temperature", "1.0"),
        ({"rollout.top_p": 1.5}, "S10", "rollout.top_p", "at most 1"),
    ],
)
def test_a_mistake_is_an_error_with_its_key_and_what_works(changes, rule, key, remedy):
    found = [finding for finding in errors(judged(changes)) if (finding.rule, finding.key) == (rule, full(key))]
    assert len(found) == 1, judged(changes)
    assert remedy in found[0].remedy


@pytest.mark.parametrize(
    ("changes", "rule", "key"),
    [
        ({"actor.ppo_mini_batch_size": 24}, "R18", "actor.ppo_mini_batch_size"),
        ({"rollout.dtype": "float16"}, "R28", "rollout.dtype"),
        ({"transformer.recompute_method": "uniform"}, "R31", "transformer.recompute_method"),
        ({"transformer.moe_aux_loss_coeff": 0.01}, "R34", "transformer.moe_aux_loss_coeff"),
        ({"transformer.gradient_accumulation_fusion": True}, "R35", "transformer.gradient_accumulation_fusion"),
        ({"algorithm.use_kl_in_reward": True}, "R39", "algorithm.use_kl_in_reward"),
        ({"rollout.gpu_memory_utilization": 0.95}, "R41", "rollout.gpu_memory_utilization"),
        ({"rollout.free_cache_engine": False}, "R41", "rollout.free_cache_engine"),
        ({"data.filter_overlong_prompts": False}, "R43", "data.filter_overlong_prompts"),
        ({"actor.checkpoint.save_contents": ["model"]}, "R44", "actor.checkpoint.save_contents"),
        ({"trainer.save_freq": -1}, "R45", "trainer.save_freq"),
        ({"rollout.val_kwargs.do_sample": True}, "R46", "rollout.val_kwargs.temperature"),
        ({"trainer.balance_batch": False}, "R49", "trainer.balance_batch"),
        ({"actor_rollout_ref.nccl_timeout": 1800}, "R49", "actor_rollout_ref.nccl_timeout"),
    ],
)
def test_what_only_wastes_or_risks_is_a_warning(changes, rule, key):
    assert [(finding.rule, finding.key, finding.severity) for finding in judged(changes)] == [
        (rule, full(key), Severity.WARNING)
    ]


def test_separate_rollout_nodes_have_rules_of_their_own():
    found = judged({"trainer.v1.trainer_mode": "separate_async"})
    assert {finding.key.rpartition(".")[2] for finding in errors(found) if finding.rule == "R50"} == {
        "train_batch_size", "nnodes", "backend",
    }  # fmt: skip


def test_more_prompts_a_step_than_there_are_is_an_error():
    found = judged({"data.train_batch_size": 64}, train_prompts=48)
    assert [(finding.rule, finding.remedy) for finding in found] == [("S1", "Use at most 48.")]


def test_dynamic_batching_needs_no_micro_batch_sizes_and_no_divisors():
    dynamic = {
        "actor.use_dynamic_bsz": True,
        "rollout.log_prob_use_dynamic_bsz": True,
        "ref.log_prob_use_dynamic_bsz": True,
        "actor.ppo_micro_batch_size_per_gpu": None,
        "rollout.log_prob_micro_batch_size_per_gpu": None,
        "ref.log_prob_micro_batch_size_per_gpu": None,
    }
    assert judged(dynamic) == []
    # CP shares the tokens of a sequence
    limit = {"actor.ppo_max_token_len_per_gpu": 512, "megatron.context_parallel_size": 2}
    same = {"ref.megatron.context_parallel_size": 2, "actor.ppo_mini_batch_size": 32}
    assert judged(dynamic | limit | same) == []


def test_another_engine_is_judged_by_what_does_not_depend_on_it():
    found = judged({"actor.strategy": "fsdp", "megatron.tensor_model_parallel_size": 8, "rollout.n": 1})
    assert [(finding.rule, finding.severity) for finding in found] == [("R37", Severity.ERROR), ("S11", Severity.NOTE)]


def test_a_reference_model_that_is_not_built_is_not_judged():
    without = {"actor.use_kl_loss": False, "ref.log_prob_micro_batch_size_per_gpu": 48}
    assert judged(without | {"ref.megatron.tensor_model_parallel_size": 2}) == []


def test_the_lists_of_names_are_those_of_the_installed_verl():
    from slipway.preflight.rules import algorithm
    from slipway.preflight.subject import ROLLOUT_ENGINES

    verl = Path(verl_folder())
    core = (verl / "trainer/ppo/core_algos.py").read_text()
    enum = core.partition("class AdvantageEstimator")[2].partition("ADV_ESTIMATOR_REGISTRY")[0]
    assert set(algorithm.ESTIMATORS) == {line.split('"')[1] for line in enum.splitlines() if ' = "' in line}
    registered = {line.split('"')[1] for line in core.splitlines() if line.startswith("@register_policy_loss(")}
    assert set(algorithm.LOSSES) == registered
    engines = (verl / "workers/rollout/base.py").read_text().partition("_ROLLOUT_REGISTRY = {")[2].partition("}")[0]
    assert set(ROLLOUT_ENGINES) == {line.split('"')[1] for line in engines.splitlines() if '("' in line}


def verl_folder() -> str:
    from slipway.config.verl import config_folder

    return str(config_folder().parents[1])


def test_batch_arithmetic_adds_up():
    settings = sound() | in_full({"megatron.tensor_model_parallel_size": 2, "actor.ppo_micro_batch_size_per_gpu": 4})
    values = dict(arithmetic(Subject(settings)))
    assert values["responses a step"] == 512
    assert values["optimizer steps a step"] == 2
    assert values["data-parallel ranks"] == 4
    assert values["accumulated micro batches"] == 16


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("mistralai/Mixtral-8x7B-v0.1", "moe_router_pre_softmax", False),
        ("Qwen/Qwen1.5-MoE-A2.7B", "moe_shared_expert_gate", True),
    ],
)
def test_what_mbridge_sets_otherwise_than_the_model_is_corrected(name, field, value):
    """tests/pipeline/test_convert.py: without it, logits are off by 0.3 to 0.5."""
    architecture = find_dimensions(name)
    found = errors(judged({"megatron.sequence_parallel": True}, architecture))
    # of the reference nothing is asked: it follows, unless it has fields of its own
    assert [(finding.rule, finding.key) for finding in found] == [("S19", full(f"transformer.{field}"))]
    assert f"{field}={value}" in found[0].remedy
    reference = f"ref.megatron.override_transformer_config.{field}"
    assert rules(judged({f"transformer.{field}": value, reference: value}, architecture)) == []
    (own,) = errors(judged({f"transformer.{field}": value, reference: not value}, architecture))
    assert (own.rule, own.key) == ("S19", full(reference))
    assert rules(judged({}, find_dimensions("Qwen/Qwen3-30B-A3B"))) == []


def test_a_pass_of_vllm_has_room_for_every_sequence():
    key = "rollout.max_num_batched_tokens"
    assert errors(judged({key: 1024, "rollout.max_num_seqs": 1024})) == []
    (crowded,) = errors(judged({key: 1023, "rollout.max_num_seqs": 1024}))
    assert (crowded.rule, crowded.key, crowded.remedy) == ("S27", full(key), "Use 1024 or more.")
    whole = {key: 2048, "rollout.max_model_len": 4096}
    assert errors(judged(whole)) == []
    (short,) = errors(judged(whole | {"rollout.enable_chunked_prefill": False}))
    assert (short.rule, short.key, short.remedy) == ("S27", full(key), "Use 4096 or more.")


def test_a_reference_with_a_field_of_its_own_needs_the_actors_attention_backend():
    def composed(changes: dict) -> list[Finding]:
        return errors(check(Subject(flatten(merge(in_full(SOUND | changes))), model())))

    reference = "ref.megatron.override_transformer_config"
    assert composed({"transformer.attention_backend": "fused"}) == []
    alone = {f"{reference}.apply_rope_fusion": True}
    (found,) = composed(alone)
    assert (found.rule, found.key) == ("S26", full(f"{reference}.attention_backend"))
    assert "the actor's is flash, this one auto" in found.why
    assert composed(alone | {f"{reference}.attention_backend": "flash"}) == []
    assert composed(alone | {"actor.use_kl_loss": False}) == []


def test_sequences_longer_than_a_window_are_refused():
    windowed = replace(model(), window=4096)
    assert rules(judged({}, windowed)) == []
    longer = {"rollout.prompt_length": 1024, "rollout.response_length": 4096}
    assert "S20" in rules(judged(longer, windowed))
    assert rules(judged(longer, model())) == []


def test_what_nothing_can_be_trained_without_is_asked_for():
    found = judged({"actor_rollout_ref.model.path": None, "data.train_files": []})
    assert [(finding.rule, finding.key) for finding in errors(found)] == [
        ("R51", "actor_rollout_ref.model.path"),
        ("R51", "data.train_files"),
    ]


def test_a_critic_is_said_not_to_be_judged():
    found = judged({"algorithm.adv_estimator": "gae", "critic.enable": True})
    assert ("S11", "critic.enable") in [(finding.rule, finding.key) for finding in found]


def test_layouts_that_are_known_to_run_pass():
    """Published layouts of Llama-3.3-70B and Qwen3-30B-A3B: no false alarm."""
    llama = model(layers=80, heads=64, kv_heads=8, vocab=128256, hidden=8192, intermediate=28672)
    qwen = model(layers=48, heads=32, kv_heads=4, vocab=151936, hidden=4096, intermediate=6144, experts=128)
    assert list(faults(Layout(64, tensor=4, pipeline=4), llama)) == []
    assert list(faults(Layout(64, tensor=2, expert=8, expert_tensor=1, sequence=True), qwen)) == []


def test_the_report_puts_the_gravest_first():
    found = [
        Finding("R18", Severity.WARNING, "a", 1, "wasteful."),
        Finding("R1", Severity.ERROR, "b", 2, "wrong.", "Use 3."),
    ]
    text = as_markdown("demo", found, "## Tables")
    assert text.index("**error** [R1] b = 2: wrong. Use 3.") < text.index("**warning** [R18]")
    assert text.rstrip().endswith("## Tables")


def test_a_slip_of_many_zeros_is_an_error_at_once():
    # at one candidate a time this would take hours
    many = {"data.train_batch_size": 2**31 - 1, "actor.ppo_mini_batch_size": 2**31 - 1}
    assert set(rules(judged(many | {"actor.ppo_micro_batch_size_per_gpu": 5}, train_prompts=100))) == {"R17", "S1"}
    assert rules(judged(many | {"trainer.n_gpus_per_node": 7, "rollout.tensor_model_parallel_size": 7})) == ["R16"]


def test_divisors_are_complete_and_in_order():
    for number in range(1, 200):
        assert divisors(number) == [size for size in range(1, number + 1) if number % size == 0]


@pytest.mark.parametrize(
    ("prompts", "gpus", "samples", "remedy"), [(1, 8, 2, "4"), (6, 8, 8, None), (5, 4, 2, "4 or 6")]
)
def test_the_mini_batch_that_is_proposed_fits(prompts, gpus, samples, remedy):
    changes = {
        "data.train_batch_size": prompts, "actor.ppo_mini_batch_size": prompts, "trainer.n_gpus_per_node": gpus,
        "rollout.n": samples,
    }  # fmt: skip
    found = [finding for finding in judged(changes) if finding.rule == "R16"]
    assert [remedy in finding.remedy for finding in found] == ([True] if remedy else [])


def test_findings_for_a_terminal_end_with_their_count():
    text = as_text(
        [Finding("R18", Severity.WARNING, "a", 1, "wasteful."), Finding("R1", Severity.ERROR, "b", 2, "bad.")]
    )
    assert text.splitlines() == [
        "error: [R1] b = 2: bad.",
        "warning: [R18] a = 1: wasteful.",
        "1 error(s), 1 warning(s), 0 note(s).",
    ]
