"""Configurations that are known to run have no error, and reported failures are caught with their cause.

tests/corpus says where each row comes from. b13 and b14 are the launcher's to notice, b15 the versions', b16 the reward
canary's (tests/unit/test_reward_canary.py).
"""

import csv
import dataclasses
from pathlib import Path

import pytest

from slipway.models.architecture import Architecture
from slipway.models.known import find_dimensions, known_models
from slipway.models.layout import Layout
from slipway.preflight.command_line import judge
from slipway.preflight.findings import errors
from slipway.preflight.rules.divisibility import faults

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
SOUND = """python3 -m verl.trainer.main_ppo model_engine=megatron \\
    actor_rollout_ref.model.path=/model \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
    actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1 actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    algorithm.adv_estimator=grpo critic.enable=False data.train_batch_size=64 trainer.save_freq=20 \\
    data.filter_overlong_prompts=True trainer.nnodes={nodes} trainer.n_gpus_per_node={gpus} {more}
"""
MEGATRON = "actor_rollout_ref.actor.megatron"
TP, PP, VPP, EP = (
    f"{MEGATRON}.{key}_model_parallel_size" for key in ("tensor", "pipeline", "virtual_pipeline", "expert")
)


def rows(name: str) -> list[dict[str, str]]:
    with (CORPUS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def dense(layers: int) -> Architecture:
    return Architecture("Qwen2ForCausalLM", layers, 4096, 32, 8, 128, 12288, 151936, 32768, False)


def with_experts(layers: int) -> Architecture:
    return Architecture(
        "Qwen3MoeForCausalLM", layers, 4096, 32, 8, 128, 1536, 151936, 32768, False, experts=64,
        experts_per_token=8, expert_intermediate_size=1536,
    )  # fmt: skip


MODELS = {name: find_dimensions(name) for name in known_models()}
MODELS["DeepSeek-V3 (local path)"] = MODELS["deepseek-ai/DeepSeek-V3"]
BAD = {
    "b01": (MODELS["Qwen/Qwen2.5-7B-Instruct"], f"{TP}=8", "28 attention heads"),
    "b02": (dense(30), f"{PP}=4", "30 layers do not divide"),
    "b03": (dense(80), f"{PP}=16 {VPP}=2", "5 layers of a pipeline stage"),
    "b04": (with_experts(46), f"{PP}=4", "46 layers do not divide"),
    "b05": (MODELS["Qwen/Qwen2.5-32B"], f"{TP}=8 {PP}=4 {EP}=4", "the model is dense"),
    "b06": (with_experts(60), f"{PP}=8", "60 layers do not divide"),
    "b07": (dense(20), f"{PP}=2 {VPP}=12", "10 layers of a pipeline stage"),
    "b08": (MODELS["Qwen/Qwen3-30B-A3B"], f"{TP}=8 {PP}=4 {EP}=4", "ETP 8 x EP 4 x PP 4 = 128"),
    "b09": (
        MODELS["Qwen/Qwen3-8B-Base"],
        f"{TP}=4 {PP}=2 data.train_batch_size=6 actor_rollout_ref.actor.ppo_mini_batch_size=6 "
        "actor_rollout_ref.rollout.n=1 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "does not divide the 3 responses",
    ),
    "b10": (dense(32), "actor_rollout_ref.rollout.n=1", "a group of one response has no baseline"),
    "b11": (dense(32), "actor_rollout_ref.actor.kl_loss_type=reverse_kl", "no estimator of the KL divergence"),
    "b12": (
        dense(32),
        "data.max_prompt_length=1024 data.max_response_length=4096 actor_rollout_ref.rollout.max_model_len=4096",
        "responses would be cut short silently",
    ),
}


def command(row: dict[str, str], more: str) -> str:
    return SOUND.format(nodes=row["nodes"], gpus=row["gpus_per_node"], more=more)


def test_the_command_that_the_rows_change_has_no_finding():
    assert judge(SOUND.format(nodes=1, gpus=8, more=""), dense(32)) == []


@pytest.mark.parametrize("row", [row for row in rows("known_bad.csv") if row["id"] in BAD], ids=lambda row: row["id"])
def test_a_reported_failure_is_caught_with_its_cause(row):
    model, settings, cause = BAD[row["id"]]
    found = errors(judge(command(row, settings), model))
    assert any(cause in finding.why for finding in found), found
    assert all(finding.remedy for finding in found)


def test_every_row_of_the_failures_is_somebodys_to_catch():
    assert {row["id"] for row in rows("known_bad.csv")} == {*BAD, "b13", "b14", "b15", "b16"}


GOOD = [row for row in rows("known_good_layouts.csv") if row["model"] in MODELS]


@pytest.mark.parametrize("row", GOOD, ids=lambda row: row["source"].rpartition("/")[2])
def test_a_layout_that_others_ship_is_no_error(row):
    size = {name: int(row[name]) for name in ("tp", "pp", "cp", "ep", "etp", "nodes", "gpus_per_node")}
    layout = Layout(
        world=size["nodes"] * size["gpus_per_node"],
        tensor=size["tp"],
        pipeline=size["pp"],
        context=size["cp"],
        expert=size["ep"],
        expert_tensor=size["etp"],
        sequence=row["sp"] == "True",
        first_stage_layers=int(row["first"]) if row["first"] else None,
        last_stage_layers=int(row["last"]) if row["last"] else None,
    )
    if row["colocated"] == "False":
        # some nodes generate: how many train is not in the table
        layouts = [layout_of(layout, nodes * size["gpus_per_node"]) for nodes in range(1, size["nodes"] + 1)]
    else:
        layouts = [layout]
    assert any(not list(faults(one, MODELS[row["model"]])) for one in layouts)


def layout_of(layout: Layout, world: int) -> Layout:
    return dataclasses.replace(layout, world=world)


def test_most_of_the_shipped_layouts_are_judged():
    assert len(GOOD) >= 40


@pytest.mark.parametrize("row", rows("models.csv"), ids=lambda row: row["model"])
def test_the_dimensions_that_ship_are_the_published_ones(row):
    model = MODELS[row["model"]]
    assert (model.name, model.layers, model.hidden_size) == (
        row["architecture"],
        int(row["layers"]),
        int(row["hidden"]),
    )
    assert (model.heads, model.kv_heads, model.head_dim) == tuple(
        int(row[key]) for key in ("heads", "kv_heads", "head_dim")
    )
    assert (model.intermediate_size, model.vocab_size) == (int(row["ffn"]), int(row["vocab"]))
    experts = (model.experts, model.experts_per_token, model.expert_intermediate_size)
    assert experts == tuple(int(row[key] or 0) for key in ("experts", "experts_per_token", "moe_ffn"))
    assert model.tied_embeddings == (row["tied_embeddings"] == "yes")
