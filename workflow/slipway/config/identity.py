"""What a checkpoint depends on: the part of a run's verl config that may not change once it has trained.

Left out is what changes neither the mathematics nor the order of samples: paths, the number of steps (for a
schedule that does not depend on it), saving, validation, logging, Ray's view of the machine.
"""

from collections.abc import Mapping
from typing import Any

from slipway.config.load import Problem
from slipway.config.verl import ACTOR, AGENT_WORKERS, OWNED, REWARD_WORKERS, SEQUENCES_AT_ONCE, VLLM_EXECUTOR, flatten

_FREE_TO_CHANGE = (
    "trainer.total_training_steps",
    "trainer.total_epochs",
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.val_before_train",
    "trainer.val_only",
    "trainer.logger",
    "trainer.log_val_generations",
    "trainer.project_name",
    "trainer.experiment_name",
    "trainer.default_local_dir",
    "trainer.default_hdfs_dir",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
    "trainer.max_actor_ckpt_to_keep",
    "trainer.max_critic_ckpt_to_keep",
    "trainer.esi_redundant_time",
    "trainer.ray_wait_register_center_timeout",
    "trainer.resume_mode",
    "trainer.resume_from_path",
    "trainer.v1.sampler.custom_sampler.path",
    "data.train_files",
    "data.val_files",
    "data.val_batch_size",
    "data.val_max_samples",
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.actor.megatron.dist_checkpointing_path",
    "actor_rollout_ref.ref.megatron.dist_checkpointing_path",
    AGENT_WORKERS,
    REWARD_WORKERS,
    SEQUENCES_AT_ONCE,
    VLLM_EXECUTOR,
)
_FREE_SECTIONS = (
    "ray_kwargs.",
    "global_profiler.",
    "transfer_queue.",
    "critic.",
    "actor_rollout_ref.rollout.val_kwargs.",
    "actor_rollout_ref.actor.profiler.",
    "actor_rollout_ref.ref.profiler.",
    "actor_rollout_ref.rollout.profiler.",
    "actor_rollout_ref.rollout.prometheus.",
)


def training_identity(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dotted keys of a resolved verl config that its checkpoints depend on."""
    flat = flatten(resolved)
    return {key: flat[key] for key in sorted(flat) if not _is_free(key)}


def changed_since_start(run: str, started: Mapping[str, Any], resolved: Mapping[str, Any]) -> list[Problem]:
    """Compare a config with the identity that the run started with; one problem a changed setting."""
    now = training_identity(resolved)
    problems: dict[str, Problem] = {}
    # an older version may have held keys that are free by now
    for key in sorted(now.keys() | {key for key in started if not _is_free(key)}):
        if now.get(key) == started.get(key):
            continue
        setting = OWNED.get(key, f"verl.{key}")
        setting = f"verl.{key}" if setting.startswith("(") else setting
        problems.setdefault(
            setting,
            Problem(
                f"runs.{run}.{setting}",
                now.get(key),
                f"run {run!r} has been trained with {started.get(key)!r}, and its checkpoints depend on it.",
                f"Give the changed run another name (e.g. {next_name(run)}), or set the old value again"
                + (" (verl's default, or Slipway's: another version began the run)" if key not in OWNED else "")
                + ", or delete the run's folder to start over.",
            ),
        )
    if f"{ACTOR}.optim.lr_decay_steps" in {k for k in now if now.get(k) != started.get(k)}:
        problems["grpo.lr_schedule"] = Problem(
            f"runs.{run}.steps",
            resolved["trainer"]["total_training_steps"],
            f"run {run!r} has a {now[f'{ACTOR}.optim.lr_decay_style']} learning-rate schedule, whose form depends on "
            f"the number of steps; it started with {started.get(f'{ACTOR}.optim.lr_decay_steps')}.",
            f"Only runs with lr_schedule: constant can be prolonged; give this one another name "
            f"(e.g. {next_name(run)}).",
        )
    return list(problems.values())


def next_name(run: str) -> str:
    """Return a name for a changed version of a run."""
    stem, dash, number = run.rpartition("-")
    return f"{stem}-{int(number) + 1}" if dash and number.isdigit() else f"{run}-2"


def _is_free(key: str) -> bool:
    if key in _FREE_TO_CHANGE or key.startswith(_FREE_SECTIONS) or key == "model_engine":
        return True
    # derived by verl from the model's path
    return key.endswith((".hf_config_path", ".tokenizer_path"))
