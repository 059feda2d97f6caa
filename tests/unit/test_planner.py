"""The planner: it finds what others ship, says what is out, and prefers what is faster."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slipway.config.schema import Parallel
from slipway.errors import SlipwayError
from slipway.models.known import find_dimensions, known_models
from slipway.models.layout import Layout
from slipway.models.sizes import stage_layers
from slipway.preflight.auto_layout import fastest_layout, layout_on_cpu
from slipway.preflight.planning.hardware import gpu_named
from slipway.preflight.planning.in_words import describe, settings, why_first
from slipway.preflight.planning.memory import forecast
from slipway.preflight.planning.search import SAVINGS, Machine, plan_layouts, plan_layouts_as_given
from slipway.preflight.planning.step_time import Links, forward_operations, step_time
from slipway.preflight.planning.workload import Workload, workload_of
from slipway.preflight.rules.divisibility import faults
from slipway.preflight.subject import Subject

ROOT = Path(__file__).resolve().parents[2]
H100 = gpu_named("H100-80GB")
WORK = Workload(
    prompts=512, samples=8, mini_batch=512, prompt_length=1024, response_length=3072, micro_tokens=4096,
    log_prob_tokens=4096,
)  # fmt: skip


def shipped() -> list[dict[str, str]]:
    with (ROOT / "tests/corpus/known_good_layouts.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = {"DeepSeek-V3 (local path)": "deepseek-ai/DeepSeek-V3"}
    for row in rows:
        row["model"] = names.get(row["model"], row["model"])
    # where some nodes only generate, the table does not say how many train
    return [row for row in rows if row["model"] in known_models() and row["colocated"] == "True"]


@pytest.mark.parametrize("row", shipped(), ids=lambda row: row["source"].rpartition("/")[2])
def test_no_layout_that_others_ship_is_called_too_large(row):
    size = {key: int(row[key]) for key in ("nodes", "gpus_per_node", "tp", "pp", "cp", "ep", "etp", "gen_tp", "seq")}
    layout = Layout(
        world=size["nodes"] * size["gpus_per_node"], tensor=size["tp"], pipeline=size["pp"], context=size["cp"],
        expert=size["ep"], expert_tensor=size["etp"], sequence=row["sp"] == "True",
        first_stage_layers=int(row["first"]) if row["first"] else None,
        last_stage_layers=int(row["last"]) if row["last"] else None,
    )  # fmt: skip
    # four GPUs a node: GB200
    gpu = gpu_named("B200-180GB" if size["gpus_per_node"] == 4 else "H100-80GB")
    work = Workload(
        prompts=int(row["prompts"]), samples=int(row["group"]), mini_batch=int(row["prompts"]),
        prompt_length=size["seq"] // 4, response_length=size["seq"] - size["seq"] // 4, micro_tokens=0,
        log_prob_tokens=0, rollout_tensor=size["gen_tp"],
    ).with_micro_batch(int(row["mbs"]))  # fmt: skip
    model = find_dimensions(row["model"])
    assert list(faults(layout, model)) == []
    tried = [
        forecast(model, layout, replace(work, rollout_share=share, **switches), gpu.memory, size["gpus_per_node"])
        for share, switches in SAVINGS
    ]
    assert any(not needed.exceeds(gpu.memory) for needed in tried), tried[-1].peak


def test_there_are_enough_of_them():
    assert len(shipped()) >= 25


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-235B-A22B", "deepseek-ai/DeepSeek-V3"])
def test_what_is_proposed_is_what_megatron_takes_and_what_fits(name):
    model = find_dimensions(name)
    machine = Machine(64, 8, H100)
    ranking = plan_layouts(model, machine, WORK)
    assert ranking.fitting
    times = [one.time.total for one in ranking.fitting if not one.tight]
    assert times == sorted(times)
    for one in ranking.fitting:
        layout, work = one.layout, one.work
        assert list(faults(layout, model)) == []
        assert sum(stage_layers(model.layers, layout)) == model.layers
        responses, rest = divmod(work.mini_batch * work.samples, layout.data)
        assert rest == 0
        assert work.micro_responses and responses % work.micro_responses == 0
        if layout.virtual_pipeline:
            assert responses // work.micro_responses % layout.pipeline == 0
        assert not one.memory.exceeds(H100.memory)
        assert one.memory.cache_tokens >= work.length
    assert "saves" in why_first(ranking)


def test_layers_that_do_not_divide_go_to_shorter_ends():
    """As others ship it: 94 layers in 8 stages with 11 at both ends, 61 in 16 with 3 and 2."""
    machine = Machine(16, 8, H100)
    ends = {
        (one.layout.pipeline, one.layout.first_stage_layers, one.layout.last_stage_layers)
        for one in plan_layouts(find_dimensions("Qwen/Qwen3-235B-A22B"), machine, WORK).fitting
    }
    assert (8, 11, 11) in ends
    ranking = plan_layouts(find_dimensions("deepseek-ai/DeepSeek-V3"), Machine(32, 8, H100), WORK)
    assert (16, 3, 2) in {
        (one.layout.pipeline, one.layout.first_stage_layers, one.layout.last_stage_layers) for one in ranking.fitting
    }


def test_families_that_are_out_say_why():
    smol = find_dimensions("HuggingFaceTB/SmolLM2-135M-Instruct")
    out = {(one.tensor, one.pipeline): one.why for one in plan_layouts(smol, Machine(1, 2, H100), WORK).rejected}
    assert "9 attention heads and 3 key/value heads" in out[2, 1]
    large = plan_layouts(find_dimensions("Qwen/Qwen2.5-32B"), Machine(1, 2, H100), WORK)
    assert not large.fitting
    assert any("GiB at least, of 80" in one.why for one in large.rejected)
    huge = plan_layouts(find_dimensions("deepseek-ai/DeepSeek-V3"), Machine(1, 1, H100), WORK)
    assert "no rollout engine" in huge.rejected[0].why


def test_operations_are_two_a_parameter_and_token():
    model = find_dimensions("Qwen/Qwen2.5-7B-Instruct")
    # embedding lookups are none; attention over a short sequence hardly counts
    matrices = 7_615_616_512 - 152064 * 3584
    assert forward_operations(model, 1) == pytest.approx(2 * matrices, rel=0.001)
    # 22 B of 235 B parameters are active
    assert forward_operations(find_dimensions("Qwen/Qwen3-235B-A22B"), 1) == pytest.approx(2 * 21.5e9, rel=0.03)


def test_longer_links_and_more_waiting_take_longer():
    model, machine = find_dimensions("Qwen/Qwen2.5-32B"), Machine(8, 8, H100)

    def parts(layout: Layout) -> dict[str, float]:
        work = replace(WORK, prompts=8, mini_batch=8, rollout_tensor=8).with_micro_batch(1)
        return step_time(model, layout, work, H100, machine.gpus_per_node, 1e6).parts()

    one = parts(Layout(64, pipeline=8))
    assert parts(Layout(64, pipeline=8, virtual_pipeline=2))["pipeline"] < one["pipeline"]
    assert parts(Layout(64, pipeline=16))["pipeline"] > one["pipeline"]
    assert parts(Layout(64, tensor=8, sequence=True))["tensor"] > parts(Layout(64, tensor=2, sequence=True))["tensor"]
    assert one["tensor"] == one["context"] == one["expert"] == 0
    within, across = (Links(H100, 8).seconds(1e9, 8, span) for span in (8, 16))
    assert across > 5 * within


def subject(model: str | None, gpus: int, memory: float = 80, **more: object) -> Subject:
    keys = {
        "data.train_batch_size": 64,
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.rollout.prompt_length": 512,
        "actor_rollout_ref.rollout.response_length": 1024,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.actor.use_kl_loss": True,
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": gpus,
    }
    return Subject(keys | more, find_dimensions(model) if model else None, gpu_memory=memory * 2**30)


def test_auto_takes_the_fastest_that_fits_with_the_runs_own_settings():
    assert fastest_layout(subject("Qwen/Qwen2.5-0.5B", 1)) == Parallel()
    assert fastest_layout(subject(None, 8)) == Parallel()
    chosen = fastest_layout(subject("Qwen/Qwen2.5-7B-Instruct", 8))
    assert chosen.tensor * chosen.pipeline * chosen.context > 1
    with pytest.raises(SlipwayError, match=r"needs .* GiB at least, of 80"):
        fastest_layout(subject("Qwen/Qwen2.5-14B", 1))
    # 12 responses a step on 8 ranks: only fewer data-parallel ranks do, and micro batches of 4 only on three or one
    odd = {
        "data.train_batch_size": 12,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 12,
        "actor_rollout_ref.rollout.n": 1,
    }
    chosen = fastest_layout(subject("Qwen/Qwen2.5-0.5B", 8, **odd))
    assert 8 // (chosen.tensor * chosen.pipeline * chosen.context) == 1


def test_auto_takes_nothing_that_the_forecast_puts_above_the_memory():
    with pytest.raises(SlipwayError, match=r"no layout fits by forecast; TP \d PP \d .*comes nearest"):
        fastest_layout(subject("Qwen/Qwen2.5-7B-Instruct", 8, memory=40))


def test_what_is_forecast_above_the_memory_comes_last():
    subject_ = subject("Qwen/Qwen2.5-14B", 8)
    machine, work = Machine(1, 8, H100), workload_of(subject_)
    over = [one.memory.peak.total > H100.memory for one in plan_layouts_as_given(subject_.model, machine, work).fitting]
    assert True in over and False in over
    assert over == sorted(over)


def test_auto_says_that_the_micro_batch_divides_nothing():
    seven = {"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 7}
    with pytest.raises(SlipwayError, match="micro batches of 7 responses do not divide"):
        fastest_layout(subject("Qwen/Qwen2.5-0.5B", 8, **seven))


def test_auto_on_the_cpu_takes_the_least_parallelism():
    model = find_dimensions("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert layout_on_cpu(1, 1, model) == Parallel()
    assert layout_on_cpu(2, 1, None) == Parallel()
    assert layout_on_cpu(100_000, 8, model) == Parallel()  # at once


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(ROOT / "scripts/plan.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_command_ranks_and_explains():
    done = run("Qwen/Qwen3-30B-A3B", "--gpus", "32", "--top", "3")
    assert done.returncode == 0, done.stderr
    assert "  1. TP" in done.stdout
    assert "The first one: against" in done.stdout
    plain = json.loads(run("Qwen/Qwen3-30B-A3B", "--gpus", "32", "--json").stdout)
    assert describe(Layout(**{k: v for k, v in plain["fitting"][0]["layout"].items() if k != "data"})) in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Qwen/Qwen2.5-7B", "--gpus", "8"], "did you mean Qwen/Qwen2.5-7B-Instruct"),
        (["Qwen/Qwen2.5-0.5B", "--gpus", "12"], "no multiple of the 8 GPUs of a node"),
        (["Qwen/Qwen2.5-0.5B", "--gpus", "8", "--gpu", "V100"], "Known are"),
        (["Qwen/Qwen2.5-0.5B", "--gpus", "8", "--prompts", "4", "--mini-batch", "8"], "more than the 4 prompts"),
        (["Qwen/Qwen2.5-0.5B", "--gpus", "0"], "is not above 0"),
        (["deepseek-ai/DeepSeek-V3", "--gpus", "8"], ""),
        (["Qwen/Qwen2.5-7B-Instruct", "--gpus", "8", "--response", "60000"], "positions end at 32768"),
        (["mistralai/Mistral-7B-v0.1", "--gpus", "8", "--response", "6000"], "attend to the last 4096"),
    ],
)
def test_a_request_that_cannot_be_met_is_said(arguments, words):
    done = run(*arguments)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert words in done.stderr + done.stdout


def test_the_settings_are_a_launch_that_preflight_takes():
    from slipway.preflight.command_line import judge
    from slipway.preflight.findings import errors

    for name, nodes in (
        ("Qwen/Qwen2.5-7B-Instruct", 1),
        ("Qwen/Qwen3-235B-A22B", 16),
        ("mistralai/Mixtral-8x7B-v0.1", 2),
        ("Qwen/Qwen1.5-MoE-A2.7B", 1),
    ):
        model = find_dimensions(name)
        best = plan_layouts(model, Machine(nodes, 8, H100), WORK).fitting[0]
        launch = (
            f"python -m verl.trainer.main_ppo model_engine=megatron actor_rollout_ref.model.path={name} "
            "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 "
            "actor_rollout_ref.actor.use_kl_loss=True "
            "actor_rollout_ref.actor.ppo_mini_batch_size=512 algorithm.adv_estimator=grpo critic.enable=False "
            "data.train_batch_size=512 trainer.save_freq=20 data.filter_overlong_prompts=True "
            "data.max_prompt_length=1024 "
            f"data.max_response_length=3072 trainer.nnodes={nodes} trainer.n_gpus_per_node=8 "
            + " ".join(settings(best, model))
        )
        assert errors(judge(launch, gpu=H100)) == []
