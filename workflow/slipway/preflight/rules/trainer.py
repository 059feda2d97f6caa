"""Rules of verl's trainer: checkpoints, resume, reward, and keys that are never read."""

from collections.abc import Iterator

from slipway.config.verl import ACTOR
from slipway.preflight.findings import Finding
from slipway.preflight.subject import Subject

# verl/utils/checkpoint/checkpoint_manager.py:52-98
CONTENTS = ("model", "optimizer", "extra", "hf_model")
# key -> its default, where the value is read nowhere in verl 0.9.1's V1 trainer
NEVER_READ = {
    "trainer.balance_batch": (True, "verl 0.9 always balances"),
    "actor_rollout_ref.nccl_timeout": (600, "process groups have torch's own time limit"),
    "data.truncation": ("error", "prompts are cut from the left"),
    "algorithm.filter_groups.max_num_gen_batches": (0, "use filter_groups.max_inflight_gen_batches"),
}
# verl/trainer/config/legacy_reward_impl.yaml: composed, and migrated by the fully asynchronous trainer only
LEGACY = {
    "custom_reward_function.path": "reward.custom_reward_function.path",
    "custom_reward_function.name": "reward.custom_reward_function.name",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.enable": "reward.reward_model.enable",
    "sandbox_fusion.url": "reward.sandbox_fusion.url",
    "sandbox_fusion.max_concurrent": "reward.sandbox_fusion.max_concurrent",
    "sandbox_fusion.memory_limit_mb": "reward.sandbox_fusion.memory_limit_mb",
}


def check(subject: Subject) -> Iterator[Finding]:
    """Yield what loses checkpoints, what a resume trips over, and what has no effect."""
    for key in ("actor_rollout_ref.model.path", "data.train_files"):
        if key in subject.settings and not subject.get(key):
            yield subject.error("R51", key, "there is nothing to train without it.", "Give it.")
    if subject.get("critic.enable") is True or subject.get("algorithm.adv_estimator") == "gae":
        yield subject.note("S11", "critic.enable", "a critic's layout, batches and memory are not judged.")
    yield from _checkpoints(subject)
    yield from _resume(subject)
    for key, real in LEGACY.items():
        if subject.get(key) is not None:
            # verl/experimental/reward_loop/reward_loop.py:39-90
            yield subject.error(
                "R48", key, "main_ppo does not read it: verl's default reward would score.", f"Set {real}."
            )
    for key, (default, why) in NEVER_READ.items():
        if key in subject.settings and subject.get(key) != default:
            yield subject.warning("R49", key, f"has no effect: {why}.", "Leave it out.")
    yield from _asynchronous(subject)


def _checkpoints(subject: Subject) -> Iterator[Finding]:
    for which in ("save_contents", "load_contents"):
        key = f"{ACTOR}.checkpoint.{which}"
        contents = subject.get(key)
        if not isinstance(contents, list):
            continue
        unknown = [str(entry) for entry in contents if entry not in CONTENTS]
        if unknown:
            yield subject.error(
                "R44",
                key,
                f"{', '.join(unknown)}: verl ignores what it does not know.",
                f"Use some of {', '.join(CONTENTS)}.",
            )
        elif not {"model", "optimizer", "extra"} <= set(contents):
            yield subject.warning(
                "R44",
                key,
                "a run that is continued needs model, optimizer and extra (schedule, random state).",
                "Add them.",
            )
    frequency = subject.number("trainer.save_freq")
    if frequency is not None and frequency <= 0:
        # verl/trainer/ppo/v1/trainer_base.py: saves, the last step too, only where save_freq is above 0
        yield subject.warning("R45", "trainer.save_freq", "no checkpoint is ever written.", "Use 20, say.")


def _resume(subject: Subject) -> Iterator[Finding]:
    # verl/trainer/ppo/v1/trainer_base.py:852-877: after models and servers are up
    mode, path = subject.get("trainer.resume_mode"), subject.get("trainer.resume_from_path")
    if mode not in ("auto", "disable", "resume_path"):
        yield subject.error("R45", "trainer.resume_mode", "verl has no such mode.", "Use auto, disable or resume_path.")
    elif mode == "resume_path" and not (isinstance(path, str) and "global_step_" in path):
        yield subject.error(
            "R45", "trainer.resume_from_path", "resume_path needs the folder of a step.", "Give .../global_step_<n>."
        )
    elif mode != "resume_path" and path is not None:
        yield subject.warning("R45", "trainer.resume_from_path", "is read with resume_mode=resume_path only.")


def _asynchronous(subject: Subject) -> Iterator[Finding]:
    if subject.get("trainer.v1.trainer_mode") != "separate_async":
        return
    # verl/trainer/ppo/v1/trainer_separate_async.py:59-72
    steps = subject.count("trainer.v1.separate_async.parameter_sync_step")
    mini, batch = subject.count(f"{ACTOR}.ppo_mini_batch_size"), subject.count("data.train_batch_size")
    if steps and mini and batch and batch != steps * mini:
        yield subject.error(
            "R50",
            "data.train_batch_size",
            f"must be parameter_sync_step x ppo_mini_batch_size, {steps} x {mini}.",
            f"Use {steps * mini}.",
        )
    if not subject.count("actor_rollout_ref.rollout.nnodes"):
        yield subject.error(
            "R50", "actor_rollout_ref.rollout.nnodes", "separate rollout nodes are needed.", "Use 1 or more."
        )
    if subject.get("actor_rollout_ref.rollout.checkpoint_engine.backend") == "naive":
        yield subject.error(
            "R50",
            "actor_rollout_ref.rollout.checkpoint_engine.backend",
            "naive serves colocated rollouts only.",
            "Use nccl.",
        )
