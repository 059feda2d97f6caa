"""Layout and batch rules: every mistake found, no false alarm, and what would work."""

import pytest

from slipway.config.schema import Data, Grpo, Parallel, Run
from slipway.models.architecture import Architecture
from slipway.preflight.batches import arithmetic, check_batches
from slipway.preflight.findings import Finding, Severity, as_markdown, divisors, errors
from slipway.preflight.layout import check_layout, choose_layout

DATA = Data(task="reasoning_gym", dataset="chain_sum", train=4096, heldout=50)


def model(layers=28, heads=28, kv_heads=4, vocab=152064, hidden=3584, intermediate=18944, experts=0) -> Architecture:
    return Architecture(
        name="Qwen2ForCausalLM", layers=layers, hidden_size=hidden, heads=heads, kv_heads=kv_heads,
        head_dim=hidden // heads, intermediate_size=intermediate, vocab_size=vocab, max_positions=32768,
        tied_embeddings=False, experts=experts,
    )  # fmt: skip


def run(nodes=1, gpus=8, **changes) -> Run:
    return Run(model="m", data="d", evaluation=["e"], steps=10, nodes=nodes, gpus_per_node=gpus, **changes)


def rules(found: list[Finding]) -> list[str]:
    return [finding.rule for finding in errors(found)]


@pytest.mark.parametrize(
    ("parallel", "architecture", "expected", "remedy"),
    [
        ({"tensor": 2, "pipeline": 2}, model(), [], ""),
        ({"tensor": 8}, model(), ["R4"], "1 or 2 or 4"),
        ({"tensor": 3}, model(), ["R1", "R4"], "2 or 4"),
        ({"pipeline": 8}, model(), ["R6"], "4 or 7"),
        ({"pipeline": 4}, model(layers=30), ["R6"], "3 or 5"),
        ({"tensor": 4, "pipeline": 4}, model(), ["R1"], "8"),
        ({"virtual_pipeline": 2}, model(), ["R7"], "pipeline above 1"),
        ({"pipeline": 2, "virtual_pipeline": 12}, model(layers=20), ["R7"], "10"),
        ({"pipeline": 2, "virtual_pipeline": 7}, model(), [], ""),
        ({"expert": 4}, model(), ["R8"], "Use 1."),
        ({"expert": 3}, model(experts=128), ["R8"], "2 or 4"),
        ({"tensor": 8, "expert": 4}, model(heads=32, kv_heads=8, experts=128), ["R2"], "expert_tensor: 1"),
        ({"tensor": 8, "expert": 8, "expert_tensor": 1}, model(heads=32, kv_heads=8, experts=128), [], ""),
        ({"tensor": 2}, model(vocab=50257), ["R9"], "Use 1"),
        ({"rollout_tensor": 3}, model(), ["R22", "R24"], "2 or 4"),
    ],
)  # fmt: skip
def test_layout_rules(parallel, architecture, expected, remedy):
    found = check_layout("demo", run(), Parallel(**parallel), architecture)
    assert rules(found) == expected
    assert all(finding.key.startswith("runs.demo.parallel") for finding in found)
    if expected:
        assert any(remedy in finding.remedy for finding in found), [finding.remedy for finding in found]


@pytest.mark.parametrize(
    ("grpo", "expected", "remedy"),
    [
        ({"prompts_per_step": 64, "samples_per_prompt": 8, "micro_batch_size": 8}, [], ""),
        ({"prompts_per_step": 64, "micro_batch_size": 7}, ["R17"], "4 or 8"),
        ({"prompts_per_step": 5, "samples_per_prompt": 3, "micro_batch_size": 1}, ["R16"], "8"),
        ({"prompts_per_step": 64, "mini_batch_prompts": 128}, ["R14"], "at most 64"),
        ({"prompts_per_step": 64, "log_prob_micro_batch_size": 48}, ["R15"], "32 or 64"),
        ({"prompts_per_step": 8192}, ["S1"], "at most 4096"),
        ({"prompts_per_step": 64, "lr_warmup_steps": 10}, ["R47"], "less than 10"),
    ],
)
def test_batch_rules(grpo, expected, remedy):
    found = check_batches("demo", run(grpo=Grpo(**grpo)), Parallel(), DATA)
    assert rules(found) == expected
    if expected:
        assert any(remedy in finding.remedy for finding in found), [finding.remedy for finding in found]


def test_a_mini_batch_that_wastes_is_a_warning():
    found = check_batches("demo", run(grpo=Grpo(prompts_per_step=64, mini_batch_prompts=24)), Parallel(), DATA)
    assert [(finding.rule, finding.severity) for finding in found] == [("R18", Severity.WARNING)]


def test_batch_arithmetic_adds_up():
    grpo = Grpo(prompts_per_step=64, samples_per_prompt=8, mini_batch_prompts=32, micro_batch_size=4)
    values = dict(arithmetic(run(grpo=grpo), Parallel(tensor=2)))
    assert values["responses a step"] == 512
    assert values["optimizer steps a step"] == 2
    assert values["data-parallel ranks"] == 4
    assert values["accumulated micro batches"] == 16


def test_auto_takes_the_least_model_parallelism_that_fits():
    assert choose_layout(run(device="cpu", gpus=1), model()) == Parallel()
    # 7.6 B parameters x (8 + 12/DP) bytes: 67 GiB a GPU unsplit, 39 GiB at TP 2
    assert choose_layout(run(gpu_memory_gib=80), model()) == Parallel(tensor=2)
    assert choose_layout(run(gpus=1, gpu_memory_gib=80), model()) is None
    assert choose_layout(run(gpu_memory_gib=141), model()) == Parallel()


def test_layouts_that_are_known_to_run_pass():
    """Published layouts of Llama-3.3-70B and Qwen3-30B-A3B: no false alarm."""
    llama = model(layers=80, heads=64, kv_heads=8, vocab=128256, hidden=8192, intermediate=28672)
    qwen = model(layers=48, heads=32, kv_heads=4, vocab=151936, hidden=4096, intermediate=6144, experts=128)
    assert check_layout("a", run(nodes=8), Parallel(tensor=4, pipeline=4, rollout_tensor=8), llama) == []
    assert check_layout("a", run(nodes=8), Parallel(tensor=2, expert=8, expert_tensor=1, rollout_tensor=4), qwen) == []


def test_the_report_puts_the_gravest_first():
    found = [
        Finding("R18", Severity.WARNING, "a", 1, "wasteful."),
        Finding("R1", Severity.ERROR, "b", 2, "wrong.", "Use 3."),
    ]
    text = as_markdown("demo", found, "## Tables")
    assert text.index("**error** [R1] b = 2: wrong. Use 3.") < text.index("**warning** [R18]")
    assert text.rstrip().endswith("## Tables")


def test_a_slip_of_many_zeros_is_an_error_at_once():
    # at one candidate a time these would take hours
    assert choose_layout(run(nodes=100_000, device="cpu"), model()) is not None
    found = check_batches("demo", run(grpo=Grpo(prompts_per_step=2**31 - 1, micro_batch_size=7)), Parallel(), DATA)
    assert rules(found) == ["R17", "S1"]
    found = check_batches("demo", run(gpus=7, grpo=Grpo(prompts_per_step=2**31 - 1)), Parallel(), DATA)
    assert rules(found) == ["R16"]


def test_divisors_are_complete_and_in_order():
    for number in range(1, 200):
        assert divisors(number) == [size for size in range(1, number + 1) if number % size == 0]


@pytest.mark.parametrize(
    ("prompts", "gpus", "samples", "remedy"), [(1, 8, 2, "4"), (6, 8, 8, None), (5, 4, 2, "4 or 6")]
)
def test_the_mini_batch_that_is_proposed_fits(prompts, gpus, samples, remedy):
    grpo = Grpo(prompts_per_step=prompts, samples_per_prompt=samples, micro_batch_size=1)
    found = [f for f in check_batches("demo", run(gpus=gpus, grpo=grpo), Parallel(), DATA) if f.rule == "R16"]
    assert [remedy in finding.remedy for finding in found] == ([True] if remedy else [])
