"""A run's settings become verl's own config; what its checkpoints depend on may not change."""

import datetime
from pathlib import Path

import pytest

from slipway.config import verl
from slipway.config.identity import changed_since_start, next_name, training_identity
from slipway.config.schema import Data, Parallel, Run

DATA = Data(task="reasoning_gym", sources=[{"dataset": "chain_sum"}], train=100, heldout=50)


def resolve(folder: str = "results", **changes):
    settings = {"model": "m", "data": "d", "evaluation": ["e"], "steps": 40, **changes}
    names = ("model", "megatron", "train.parquet", "heldout.parquet", "demo/train/checkpoints")
    files = verl.RunFiles(*(Path("/") / folder / name for name in names))
    return verl.resolve(
        "demo",
        Run(**settings),
        DATA,
        Parallel(tensor=2),
        verl.MicroBatches(8, 8),
        files,
        {f"{verl.ROLLOUT}.name": "vllm"},
    )


def resolved(**changes) -> dict:
    config, problems = resolve(**changes)
    assert problems == []
    return config.plain()


def test_settings_reach_the_keys_that_verl_reads():
    config = resolved(grpo={"samples_per_prompt": 16, "learning_rate": 3e-6, "kl_coefficient": 0.01})
    actor = config["actor_rollout_ref"]["actor"]
    assert config["algorithm"]["adv_estimator"] == "grpo"
    assert config["actor_rollout_ref"]["rollout"]["n"] == 16
    assert actor["rollout_n"] == 16  # verl's own interpolation, resolved
    assert actor["optim"]["lr"] == 3e-6
    assert actor["use_kl_loss"] is True
    assert actor["kl_loss_type"] == "low_var_kl"
    assert actor["strategy"] == "megatron"
    assert actor["megatron"]["use_distributed_optimizer"] is True
    assert config["actor_rollout_ref"]["ref"]["megatron"]["tensor_model_parallel_size"] == 2
    assert config["trainer"]["total_training_steps"] == 40


def test_every_owned_key_exists_in_verl():
    flat = verl.flatten(resolved())
    missing = [key for key in verl.OWNED if key not in flat and key != "model_engine"]
    assert missing == []


def test_a_further_verl_key_may_be_dotted_or_nested():
    dotted = resolved(verl={"actor_rollout_ref.actor.clip_ratio_c": 4.0})
    nested = resolved(verl={"actor_rollout_ref": {"actor": {"clip_ratio_c": 4.0}}})
    assert dotted == nested
    assert dotted["actor_rollout_ref"]["actor"]["clip_ratio_c"] == 4.0


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("actor_rollout_ref.actor.clip_ratio_hgh", "clip_ratio_high"),
        ("actor_rollout_ref.actor.megatron.grad_offload", "param_offload"),
        ("actor_rollout_ref.actor.megatron.override_transformer_config.layernorm_fusion", "persist_layer_norm"),
        ("actor_rollout_ref.actor.megatron.override_ddp_config.overlap_grad_reduc", "overlap_grad_reduce"),
        ("algorithm.group_sise", "verl.trainer.main_ppo --cfg job"),
        ("trainer.total_training_steps", "Set runs.demo.steps"),
        ("algorithm.adv_estimator", "always grpo"),
    ],
)
def test_an_unknown_or_owned_verl_key_is_refused(key, said):
    config, problems = resolve(verl={key: 1})
    assert config is None
    assert len(problems) == 1
    assert f"runs.demo.verl.{key} = 1" in str(problems[0])
    assert said in str(problems[0])


def test_fields_of_megatrons_dataclasses_are_accepted():
    prefix = "actor_rollout_ref.actor.megatron"
    config = resolved(
        verl={
            f"{prefix}.override_transformer_config.recompute_granularity": "full",
            f"{prefix}.override_transformer_config.tensor_model_parallel_size": 1,  # of its base class
            f"{prefix}.override_ddp_config.overlap_grad_reduce": True,
            "actor_rollout_ref.actor.optim.override_optimizer_config.loss_scale": 2.0,
        }
    )
    assert config["actor_rollout_ref"]["actor"]["megatron"]["override_ddp_config"]["overlap_grad_reduce"] is True


def test_identity_ignores_paths_steps_saving_and_validation():
    one = training_identity(resolved())
    two = training_identity(resolved(folder="elsewhere", steps=80, save_every=3, validate_every=5, keep_checkpoints=9))
    assert one == two


def test_identity_holds_what_changes_the_mathematics():
    one = training_identity(resolved())
    for grpo in ({"learning_rate": 0.5}, {"seed": 1}, {"samples_per_prompt": 4}, {"kl_coefficient": 0.0}):
        assert training_identity(resolved(grpo=grpo)) != one
    assert training_identity(resolved(gpus_per_node=4)) != one


def test_a_changed_learning_rate_asks_for_a_new_run_and_says_why():
    started = training_identity(resolved(grpo={"learning_rate": 1e-5}))
    problems = changed_since_start("demo", started, resolved(grpo={"learning_rate": 2e-5}))
    assert len(problems) == 1
    said = str(problems[0])
    for words in ("runs.demo.grpo.learning_rate = 2e-05", "trained with 1e-05", "checkpoints depend on it", "demo-2"):
        assert words in said


def test_a_key_that_an_older_version_held_may_be_free_by_now():
    started = training_identity(resolved()) | {"reward.num_workers": 3, "trainer.logger": ["console"]}
    assert changed_since_start("demo", started, resolved()) == []


def test_steps_may_be_raised_with_a_constant_schedule_only():
    constant = training_identity(resolved(steps=40))
    assert changed_since_start("demo", constant, resolved(steps=80)) == []
    cosine = training_identity(resolved(steps=40, grpo={"lr_schedule": "cosine"}))
    problems = changed_since_start("demo", cosine, resolved(steps=80, grpo={"lr_schedule": "cosine"}))
    assert len(problems) == 1
    assert "runs.demo.steps = 80" in str(problems[0])
    assert "cosine" in str(problems[0])


@pytest.mark.parametrize(("name", "following"), [("demo", "demo-2"), ("demo-2", "demo-3"), ("a-b", "a-b-2")])
def test_next_name(name, following):
    assert next_name(name) == following


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"trainer.rollout_data_dir": "${oops}"}, "runs.demo.verl: cannot be laid over verl's config"),
        ({"trainer": {"rollout_data_dir": datetime.date(2026, 12, 1)}}, "trainer.rollout_data_dir = datetime.date"),
        (
            {"trainer.rollout_data_dir": "a", "trainer": {"rollout_data_dir": "b"}},
            "runs.demo.verl.trainer.rollout_data_dir = 'b': given twice",
        ),
        ({"trainer": {"logger": ["console", {1: "x"}]}}, "trainer.logger"),
    ],
)
def test_what_verls_config_cannot_hold_is_named(extra, said):
    config, problems = resolve(verl=extra)
    assert config is None
    assert len(problems) == 1, problems
    assert said in str(problems[0])
