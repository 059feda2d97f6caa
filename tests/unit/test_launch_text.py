"""Launch scripts as people write them: what they ask for is read, what is not in them is said, nothing is invented."""

import pytest

from slipway.errors import SlipwayError
from slipway.launch import EXTERNAL_MODULES, REGISTRATION
from slipway.models.known import find_dimensions
from slipway.preflight.command_line import judge
from slipway.preflight.findings import errors
from slipway.preflight.launch_text import read_launch
from slipway.preflight.planning.hardware import gpu_named

A = "actor_rollout_ref"
LAUNCH = (
    "python3 -m verl.trainer.main_ppo model_engine=megatron "
    f"{A}.model.path=/model {A}.rollout.name=vllm {A}.rollout.tensor_model_parallel_size=1 {A}.rollout.n=8 "
    f"{A}.rollout.log_prob_micro_batch_size_per_gpu=1 {A}.ref.log_prob_micro_batch_size_per_gpu=1 "
    f"{A}.actor.use_kl_loss=True {A}.actor.ppo_micro_batch_size_per_gpu=1 {A}.actor.ppo_mini_batch_size=64 "
    "algorithm.adv_estimator=grpo critic.enable=False data.train_batch_size=64 trainer.save_freq=20 "
    "data.filter_overlong_prompts=True trainer.nnodes=1 trainer.n_gpus_per_node=8"
)
RECOMPUTE = " ".join(
    f"+{A}.actor.megatron.override_transformer_config.recompute_{name}={value}"
    for name, value in (("method", "uniform"), ("granularity", "full"), ("num_layers", 1))
)


def rules(text: str, **known) -> set[str]:
    return {finding.rule for finding in judge(text, **known)}


@pytest.mark.parametrize(
    "more",
    [
        # a key whose default is null may be added
        RECOMPUTE,
        "+trainer.total_training_steps=100",
        f"+{A}.rollout.max_model_len=8192",
        # the ends of commands and lines
        "; echo done",
        "&> log.txt",
        "2>&1 | tee log.txt",
        '"$@"',
        # a section is laid over the one that is there
        f"{A}.actor.optim={{lr:1e-6}}",
        "--cfg=job",
        "--config-dir=/x",
    ],
)
def test_what_runs_has_no_error(more):
    assert errors(judge(f"{LAUNCH} {more}")) == []


@pytest.mark.parametrize("more", ["hydra.run.dir=/tmp/x", "actor@actor_rollout_ref.actor=megatron_actor"])
def test_what_is_hydras_own_is_not_judged(more):
    found = judge(f"{LAUNCH} {more}")
    assert [finding.rule for finding in found] == ["S13"]


def test_a_key_that_is_there_cannot_be_added_but_is_understood():
    found = judge(f"{LAUNCH} +trainer.nnodes=2 {A}.actor.megatron.tensor_model_parallel_size=16")
    assert [finding.rule for finding in errors(found)] == ["S12"]  # 16 ranks there would be


def test_the_config_of_megatron_may_be_named_instead():
    text = LAUNCH.replace("model_engine=megatron", "--config-path=config --config-name='ppo_megatron_trainer.yaml'")
    assert errors(judge(text)) == []
    assert "S11" in rules(LAUNCH.replace("model_engine=megatron", "--config-name ppo_trainer"))


def test_arrays_defaults_and_variables_of_the_script_are_followed():
    script = f"""#!/bin/bash
# don't stop at this
set -x
NNODES=${{NNODES:-4}}
GPUS=${{1:-8}}
HELP='it spans
lines'
DATA=(
    data.train_batch_size=64   # prompts
    data.filter_overlong_prompts=True
)
MODEL=(
    {A}.model.path=/model {A}.actor.use_kl_loss=True
    "{A}.rollout.n=8"
)
MODEL+=({A}.rollout.name=vllm)
REST="trainer.save_freq=20 algorithm.adv_estimator=grpo critic.enable=False"
ENTRY=verl.trainer.main_ppo
python3 -m $ENTRY model_engine=megatron \\
    "${{DATA[@]}}" "${{MODEL[@]}}" $REST \\
    trainer.nnodes=$NNODES trainer.n_gpus_per_node=${{GPUS}} "$@"
"""
    launch = read_launch(script)
    assert launch.findings == []
    assert launch.unknown == set()
    assert sorted(launch.overrides) == sorted(
        f"model_engine=megatron data.train_batch_size=64 data.filter_overlong_prompts=True {A}.model.path=/model "
        f"{A}.actor.use_kl_loss=True {A}.rollout.n=8 {A}.rollout.name=vllm trainer.save_freq=20 "
        "algorithm.adv_estimator=grpo critic.enable=False trainer.nnodes=4 trainer.n_gpus_per_node=8".split()
    )


def test_a_launch_within_another_command_is_read():
    assert errors(judge(f'srun bash -c "{LAUNCH}"')) == []


def test_nothing_is_said_of_what_hangs_on_a_value_from_outside():
    layout = f"{A}.actor.megatron.tensor_model_parallel_size=4 {A}.actor.megatron.pipeline_model_parallel_size=4"
    assert "R1" in rules(f"{LAUNCH} {layout}")
    outside = LAUNCH.replace("trainer.nnodes=1", "trainer.nnodes=$SLURM_NNODES")
    assert rules(f"{outside} {layout}") == {"S13"}


def test_a_launch_that_was_not_understood_has_no_forecast():
    text = f"{LAUNCH} {A}.actor.nonsense=1"
    known = {"model": "Qwen/Qwen2.5-72B", "gpu": gpu_named("H100-80GB")}
    assert rules(text, **known) == {"S12"}
    assert rules(LAUNCH, **known) & {"S16", "S17"}


def test_a_sweep_is_no_launch_of_one_training():
    (found,) = errors(judge(f"{LAUNCH} {A}.actor.optim.lr=1e-6,1e-5"))
    assert (found.rule, found.key) == ("S12", f"{A}.actor.optim.lr")


def test_a_model_that_megatron_would_change_is_refused_by_its_name():
    assert "S22" in {finding.rule for finding in errors(judge(LAUNCH, model="meta-llama/Llama-3.1-8B-Instruct"))}
    assert errors(judge(LAUNCH, model=find_dimensions("Qwen/Qwen2.5-7B-Instruct"))) == []


@pytest.mark.parametrize(
    ("model", "why"),
    [("deepseek-ai/DeepSeek-V3", "verl alone cannot build it"), ("mistralai/Mixtral-8x7B-v0.1", "to the rollout")],
)
def test_what_verl_alone_cannot_train_is_said_to_need_the_registered_bridge(model, why):
    (found,) = [finding for finding in judge(LAUNCH, model=model) if finding.severity == "warning"]
    assert (found.rule, found.key) == ("S19", f"{A}.model.path")
    assert why in found.why
    assert f"{EXTERNAL_MODULES}={REGISTRATION}." in found.remedy


def test_a_number_beyond_all_measure_is_an_error_at_once():
    assert "R51" in rules(LAUNCH.replace("train_batch_size=64", f"train_batch_size={10**20}"))


@pytest.mark.parametrize("text", ["ls -l", "python train.py a=b", "A=(1 2"])
def test_a_text_without_a_launch_is_said_to_be_none(text):
    with pytest.raises(SlipwayError, match="no `python -m verl"):
        read_launch(text)
