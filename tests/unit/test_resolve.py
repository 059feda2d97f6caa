"""What a dry run finds out besides the config itself: model folders, data sets, what a run has been started with."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from slipway.config.identity import training_identity
from slipway.config.load import ConfigError, overlay
from slipway.manifest import open_product
from slipway.models.architecture import read_architecture
from slipway.models.names import hugging_face_shapes
from slipway.resolve import plan

CONFIG = {
    "models": {"small": {"demo": {"data": "sums"}}},
    "data": {
        "sums": {
            "task": "reasoning_gym",
            "sources": [{"dataset": "chain_sum"}],
            "train": 100,
            "heldout": 50,
            "warmup": 10,
        }
    },
    "evaluation": {"heldout": {"data": "sums"}},
    "runs": {
        "demo": {
            "model": "small", "data": "sums", "evaluation": ["heldout"], "steps": 4, "device": "cpu", "gpus_per_node": 1
        }
    },
}  # fmt: skip


def problems_of(changes: dict, results: Path) -> list[str]:
    try:
        plan(overlay(copy.deepcopy(CONFIG), changes), results)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    config = {
        "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2,
        "intermediate_size": 8, "vocab_size": 16, "max_position_embeddings": 64,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shapes = hugging_face_shapes(read_architecture(folder))
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_training_on_what_is_only_evaluated_on_is_one_problem(device, tmp_path):
    changes = {"data": {"sums": {"train": 0}}, "runs": {"demo": {"device": device}}}
    assert problems_of(changes, tmp_path) == [
        "data.sums.train = 0: runs.demo trains on it. Give the number of problems."
    ]


def test_a_good_model_and_data_set_have_no_problems(model, tmp_path):
    assert problems_of({"models": {"mine": {"path": str(model)}}, "runs": {"demo": {"model": "mine"}}}, tmp_path) == []


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("none", "has neither model.safetensors nor"),
        ("header", "cut off"),
        ("end", "but its header describes"),
        ("config", "architecture Mystery is not supported"),
        ("layers", "its tensors are not those of its config.json; missing: model.layers.1"),
    ],
)
def test_a_broken_model_folder_is_a_problem_of_its_key(model, tmp_path, damage, said, used):
    weights, config = model / "model.safetensors", model / "config.json"
    match damage:
        case "none":
            weights.unlink()
        case "header":
            weights.write_bytes(weights.read_bytes()[:50])
        case "end":
            weights.write_bytes(weights.read_bytes()[:-1])
        case "config":
            config.write_text(config.read_text().replace("Qwen2ForCausalLM", "Mystery"))
        case "layers":
            config.write_text(config.read_text().replace('layers": 1', 'layers": 2'))
    runs = {name: CONFIG["runs"]["demo"] | {"model": "mine" if used else "small"} for name in ("demo", "other")}
    problems = problems_of({"models": {"mine": {"path": str(model)}}, "runs": runs}, tmp_path)
    assert len(problems) == 1, problems
    assert problems[0].startswith(f"models.mine = {str(model)!r}: ")
    assert said in problems[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dataset": "chain_sums"}, "reasoning-gym has no dataset 'chain_sums'; nearest: chain_sum"),
        ({"parameters": {"min_term": 3}}, "parameters.min_term: dataset chain_sum has no such parameter"),
        ({"parameters": {"min_terms": "3"}}, "parameters.min_terms: '3': Input should be a valid integer"),
        ({"parameters": {"min_terms": 5, "max_terms": 2}}, "max_terms must be >= min_terms"),
    ],
)
def test_a_data_set_that_cannot_be_made_is_a_problem_of_its_key(changes, said, tmp_path):
    problems = problems_of({"data": {"sums": {"sources": [{"dataset": "chain_sum"} | changes]}}}, tmp_path)
    assert len(problems) == 1, problems
    assert problems[0].startswith("data.sums.sources[0]: ")
    assert said in problems[0]


def test_a_data_set_that_is_made_already_is_not_asked_about(tmp_path, monkeypatch):
    from slipway.config.schema import Data
    from slipway.data.sources import generated

    settings = Data(**CONFIG["data"]["sums"]).model_dump(mode="json")
    folder = tmp_path / "data/sums"
    with open_product("prepare_data", folder / "manifest.json", folder, {"settings": settings}) as product:
        product.publish([], {})
    asked = []
    monkeypatch.setattr(generated, "check_settings", lambda *settings: asked.append(settings))
    assert problems_of({}, tmp_path) == []
    assert asked == []
    assert problems_of({"data": {"sums": {"seed": 1}}}, tmp_path) == []
    assert asked == [("chain_sum", {})]


@pytest.mark.parametrize("content", ["", '{"identity": ', "{}", "[]", "5"])
def test_a_damaged_record_of_the_start_is_named(content, tmp_path):
    train = tmp_path / "demo/train"
    (train / "checkpoints/global_step_2").mkdir(parents=True)
    (train / "checkpoints/latest_checkpointed_iteration.txt").write_text("2")
    (train / "started.json").write_text(content)
    problems = problems_of({}, tmp_path)
    assert len(problems) == 1, problems
    assert "runs.demo: " in problems[0]
    assert "started.json: damaged" in problems[0]


def gpu_config(**grpo: object) -> dict:
    config = copy.deepcopy(CONFIG)
    grpo = {"max_prompt_length": 32, "max_response_length": 32} | grpo
    config["runs"]["demo"] |= {"device": "cuda", "gpus_per_node": 1, "steps": 10, "grpo": grpo}
    return config


def test_micro_batches_are_made_by_tokens_on_a_gpu_unless_given(tmp_path):
    resolved = plan(gpu_config(), tmp_path).resolved("demo").verl.flat()
    assert resolved["actor_rollout_ref.actor.use_dynamic_bsz"] is True
    assert resolved["actor_rollout_ref.ref.log_prob_use_dynamic_bsz"] is True
    # 64 prompts with 8 responses of 64 tokens each make less than what keeps a GPU busy
    assert resolved["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] == 64 * 8 * 64
    given = plan(gpu_config(micro_batch_size=16), tmp_path).resolved("demo").verl.flat()
    assert given["actor_rollout_ref.actor.use_dynamic_bsz"] is False
    assert given["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] == 16
    assert given["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"] == 16


def test_a_run_that_has_begun_keeps_its_micro_batches(tmp_path, monkeypatch):
    config = gpu_config()
    begun = plan(config, tmp_path).resolved("demo").verl
    identity = training_identity(begun.plain()) | {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 4096}
    monkeypatch.setattr("slipway.resolve._started", lambda paths, run: identity)
    kept = plan(config, tmp_path).resolved("demo").verl.flat()
    assert kept["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] == 4096


def test_a_run_may_go_on_with_other_processes(tmp_path, monkeypatch):
    config = gpu_config()
    begun = training_identity(plan(config, tmp_path).resolved("demo").verl.plain())
    config["runs"]["demo"]["verl"] = {
        "actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend": "mp",
        "actor_rollout_ref.rollout.agent.num_workers": 5,
        "actor_rollout_ref.rollout.max_num_seqs": 300,
        "reward.num_workers": 6,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 7,
    }
    monkeypatch.setattr("slipway.resolve._started", lambda paths, run: begun)
    assert plan(config, tmp_path).resolved("demo")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_corrections_leave_the_reference_all_that_the_actor_has(device, tmp_path):
    """With a field of its own it had none of the actor's: another attention backend, at which Megatron-core stops."""
    config = gpu_config(kl_coefficient=0.1)
    config["models"]["small"] = {"path": "Qwen/Qwen1.5-MoE-A2.7B"}
    config["runs"]["demo"] |= {"device": device, "gpus_per_node": 4, "gpu_memory_gib": 192, "parallel": {"expert": 4}}
    resolved = plan(config, tmp_path).resolved("demo").verl.plain()["actor_rollout_ref"]
    fields = [resolved[role]["megatron"]["override_transformer_config"] for role in ("actor", "ref")]
    assert fields[0]["moe_shared_expert_gate"] is True
    assert fields[0]["attention_backend"] == ("local" if device == "cpu" else "flash")
    assert fields[1] == fields[0]


def test_an_engine_of_one_gpu_has_no_further_process(tmp_path):
    key = "actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend"
    config = gpu_config()
    assert plan(config, tmp_path).resolved("demo").verl.flat()[key] == "uni"
    config["runs"]["demo"] |= {"gpus_per_node": 2, "parallel": {"rollout_tensor": 2}}
    assert key not in plan(config, tmp_path).resolved("demo").verl.flat()


@pytest.mark.parametrize(
    ("nodes", "gpus_per_node", "counts"), [(1, 1, (4, 4, 2)), (1, 2, (8, 8, 4)), (2, 8, (8, 8, 8))]
)
def test_few_gpus_get_few_processes_beside_them(tmp_path, nodes, gpus_per_node, counts):
    config = gpu_config()
    config["runs"]["demo"] |= {"nodes": nodes, "gpus_per_node": gpus_per_node}
    resolved = plan(config, tmp_path).resolved("demo").verl.flat()
    keys = (
        "actor_rollout_ref.rollout.agent.num_workers",
        "reward.num_workers",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units",
    )
    assert tuple(resolved[key] for key in keys) == counts


@pytest.mark.parametrize(
    ("prompts", "gpus", "rollout_tensor", "at_once"),
    [(64, 1, 1, 512), (64, 4, 2, 256), (16, 1, 1, 256), (512, 2, 1, 1024)],
)
def test_an_engine_generates_its_share_of_a_step_at_once(tmp_path, prompts, gpus, rollout_tensor, at_once):
    config = gpu_config(prompts_per_step=prompts, mini_batch_prompts=prompts)
    config["data"]["sums"]["train"] = 4096
    config["runs"]["demo"] |= {"gpus_per_node": gpus, "parallel": {"rollout_tensor": rollout_tensor}}
    resolved = plan(config, tmp_path).resolved("demo").verl.flat()
    assert resolved["actor_rollout_ref.rollout.max_num_seqs"] == at_once


def trained(results: Path, saved: list[int], exported: tuple[int, ...] = ()) -> None:
    """Leave a run with these checkpoints, the last one the newest, and exported models of these steps."""
    folder = results / "demo/train/checkpoints"
    for step in saved:
        (folder / f"global_step_{step}/actor").mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(max(saved)))
    for step in exported:
        model = results / f"demo/model-step-{step}"
        with open_product("export_hf", model / "manifest.json", model, {}) as product:
            product.publish([], {})


@pytest.mark.parametrize(
    ("saved", "exported", "every", "said"),
    [
        (
            [60, 80],
            (),
            20,
            ["of steps 20, 40; there are: steps 60, 80.", "Use 60, of whose steps none is missing", "demo-2"],
        ),
        ([50, 80], (), 20, ["of steps 20, 40, 60; there are: steps 50, 80. Use 50"]),
        ([80], (), 40, ["of step 40; there are: step 80. Leave `checkpoints` out"]),
        ([60, 80], (20, 40), 20, None),
        ([60, 80], (), 60, None),
        ([20, 40], (), 20, None),  # 60 is to come
    ],
)
def test_checkpoints_that_a_training_did_not_keep_are_told_with_what_is_there(tmp_path, saved, exported, every, said):
    trained(tmp_path, saved, exported)
    problems = problems_of(
        {"runs": {"demo": {"steps": 80, "save_every": 10, "checkpoints": {"evaluate_every": every}}}}, tmp_path
    )
    if said is None:
        assert problems == []
        return
    assert len(problems) == 1, problems
    assert problems[0].startswith(f"runs.demo.checkpoints.evaluate_every = {every}: the run has been trained for ")
    for words in said:
        assert words in problems[0]
