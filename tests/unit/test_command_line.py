"""Somebody's own launch script: read as the shell and Hydra would, judged by every rule."""

import pytest

from slipway.config.verl import composed_defaults
from slipway.config.verl_defaults import verl_defaults
from slipway.config.verl_keys import meant, renamed, renamed_keys
from slipway.errors import SlipwayError
from slipway.preflight.command_line import judge
from slipway.preflight.findings import Severity

SOUND = """#!/usr/bin/env bash
set -x
export CUDA_DEVICE_MAX_CONNECTIONS=1  # for overlap
GPUS=8
ROLLOUT=actor_rollout_ref.rollout
N_GPUS=${GPUS:-4}

PYTHONUNBUFFERED=1 python3 -m verl.trainer.main_ppo --config-name ppo_trainer \\
    model_engine=megatron \\
    algorithm.adv_estimator=grpo 'critic.enable=False' \\
    data.train_batch_size=64 data.filter_overlong_prompts=True \\
    actor_rollout_ref.model.path="$HOME/model" \\
    $ROLLOUT.name=vllm $ROLLOUT.n=8 ${ROLLOUT}.log_prob_micro_batch_size_per_gpu=8 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \\
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_permute_fusion=True \\
    trainer.n_gpus_per_node=$N_GPUS trainer.nnodes=1 trainer.save_freq=20 trainer.logger='["console"]' $@ 2>&1 | tee log
"""


def test_a_sound_script_has_a_note_about_what_comes_from_outside_alone():
    assert [(finding.severity, finding.key) for finding in judge(SOUND)] == [
        (Severity.NOTE, "actor_rollout_ref.model.path")
    ]


@pytest.mark.parametrize(
    ("old", "new", "key", "said"),
    [
        ("data.train_batch_size=64", "data.train_batchsize=64", "data.train_batchsize", "data.train_batch_size"),
        ("$ROLLOUT.n=8", "+algorithm.group_size=8", "algorithm.group_size", "actor_rollout_ref.rollout.n"),
        ("data.train_batch_size=64", "--data.train_batch_size=64", "--data.train_batch_size", "Write data.train"),
        ("trainer.nnodes=1", "--dry-run", "--dry-run", "--cfg job"),
        ("trainer.nnodes=1", "+trainer.nnodes=1", "trainer.nnodes", "without the +"),
        ("+actor_rollout_ref.actor.megatron", "actor_rollout_ref.actor.megatron", "moe_permute_fusion", "Write +"),
        ("trainer.nnodes=1", "trainer.nnodes=(1,", "trainer.nnodes", "Quote it"),
        ("model_engine=megatron", "", "model_engine", "Add model_engine=megatron"),
        ("$ROLLOUT.n=8", "$ROLLOUT.n=1", "actor_rollout_ref.rollout.n", "at least 2"),
    ],
)
def test_a_mistake_in_the_script_is_an_error(old, new, key, said):
    assert old in SOUND
    found = [finding for finding in judge(SOUND.replace(old, new)) if finding.severity is Severity.ERROR]
    assert any(key in finding.key and said in finding.remedy for finding in found), found


def test_the_arguments_alone_will_do():
    found = judge("model_engine=megatron algorithm.adv_estimator=gpro")
    assert "R36" in {finding.rule for finding in found}


@pytest.mark.parametrize("text", ["", "ls -l", "GPUS=8\nNODES=2", "python train.py --lr 3"])
def test_a_text_without_a_launch_is_refused(text):
    with pytest.raises(SlipwayError, match="--verl-args"):
        judge(text)


def test_quotes_that_do_not_end_are_named():
    with pytest.raises(SlipwayError, match="not a shell command"):
        judge("python -m verl.trainer.main_ppo 'a.b=c")


def test_the_shipped_defaults_are_those_of_the_installed_verl():
    assert verl_defaults() == composed_defaults(), "python -m slipway.config.verl_defaults"


def test_what_stands_for_a_renamed_key_is_a_key_of_verl():
    for entry in renamed_keys():
        for word in entry.instead.split():
            if word.startswith(("actor_rollout_ref.", "data.", "trainer.", "algorithm.", "reward.")):
                assert meant(word.rstrip(","), verl_defaults()) is None, entry


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("algorithm.group_size", "actor_rollout_ref.rollout.n"),
        ("actor_rollout_ref.actor.megatron.grad_offload", "actor_rollout_ref.actor.megatron.param_offload"),
        ("--fp16", "actor_rollout_ref.actor.megatron.dtype"),
        ("--train-data-path", "data.train_files"),
        ("--num_train_steps", "trainer.total_training_steps"),
        ("seq_balance", "nothing"),
    ],
)
def test_names_of_old_scripts_and_other_tools_are_known(name, instead):
    assert renamed(name).instead.startswith(instead)


def test_a_real_key_is_no_renamed_one():
    assert renamed("trainer.save_freq") is None
    assert [key for key in verl_defaults() if meant(key, verl_defaults()) is not None] == []
