"""From a run's settings to the complete config of verl: composed by Hydra from verl's own files, without torch.

`resolve` is the only place that knows which key of verl a setting of Slipway stands for.
"""

import contextlib
import importlib.metadata
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from slipway.config.load import Problem
from slipway.config.schema import Data, Parallel, Run
from slipway.config.verl_defaults import verl_defaults
from slipway.config.verl_keys import meant
from slipway.config.verl_template import Template, dotted_leaves, flatten, make_template, split_settings
from slipway.errors import SlipwayError
from slipway.manifest import fingerprint, write_text

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
# in which processes vLLM runs
VLLM_EXECUTOR = f"{ROLLOUT}.engine_kwargs.vllm.distributed_executor_backend"
# how many responses an engine generates at once
SEQUENCES_AT_ONCE = f"{ROLLOUT}.max_num_seqs"
# how many processes carry prompts and answers, score them, and keep them
AGENT_WORKERS = f"{ROLLOUT}.agent.num_workers"
REWARD_WORKERS = "reward.num_workers"
STORAGE_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"

# Megatron asserts on load that its schedule's length is the checkpoint's. A constant schedule does not use the
# length, so a number that no run reaches lets a run be prolonged.
ENDLESS_SCHEDULE_STEPS = 10_000_000

# verl key -> key below `runs.<run>` that sets it. Also tells which keys `verl:` may not set.
OWNED = {
    "algorithm.adv_estimator": "(always grpo)",
    "model_engine": "(always megatron)",
    "data.train_files": "data",
    "data.val_files": "data",
    "data.train_batch_size": "grpo.prompts_per_step",
    "data.max_prompt_length": "grpo.max_prompt_length",
    "data.max_response_length": "grpo.max_response_length",
    "data.seed": "grpo.seed",
    "actor_rollout_ref.model.path": "model",
    f"{ROLLOUT}.n": "grpo.samples_per_prompt",
    f"{ROLLOUT}.temperature": "grpo.temperature",
    f"{ROLLOUT}.top_p": "grpo.top_p",
    f"{ROLLOUT}.seed": "grpo.seed",
    f"{ROLLOUT}.name": "device",
    f"{ROLLOUT}.tensor_model_parallel_size": "parallel.rollout_tensor",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": "grpo.log_prob_micro_batch_size",
    f"{REF}.log_prob_micro_batch_size_per_gpu": "grpo.log_prob_micro_batch_size",
    f"{ACTOR}.ppo_mini_batch_size": "grpo.mini_batch_prompts",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": "grpo.micro_batch_size",
    f"{ACTOR}.optim.lr": "grpo.learning_rate",
    f"{ACTOR}.optim.lr_decay_style": "grpo.lr_schedule",
    f"{ACTOR}.optim.lr_decay_steps": "grpo.lr_schedule",
    f"{ACTOR}.optim.lr_warmup_steps": "grpo.lr_warmup_steps",
    f"{ACTOR}.optim.weight_decay": "grpo.weight_decay",
    f"{ACTOR}.optim.clip_grad": "grpo.max_grad_norm",
    f"{ACTOR}.use_kl_loss": "grpo.kl_coefficient",
    f"{ACTOR}.kl_loss_coef": "grpo.kl_coefficient",
    f"{ACTOR}.kl_loss_type": "grpo.kl_type",
    f"{ACTOR}.clip_ratio": "grpo.clip_ratio",
    f"{ACTOR}.clip_ratio_low": "grpo.clip_ratio",
    f"{ACTOR}.clip_ratio_high": "grpo.clip_ratio",
    f"{ACTOR}.entropy_coeff": "grpo.entropy_coefficient",
    f"{ACTOR}.megatron.tensor_model_parallel_size": "parallel.tensor",
    f"{ACTOR}.megatron.pipeline_model_parallel_size": "parallel.pipeline",
    f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size": "parallel.virtual_pipeline",
    f"{ACTOR}.megatron.context_parallel_size": "parallel.context",
    f"{ACTOR}.megatron.expert_model_parallel_size": "parallel.expert",
    f"{ACTOR}.megatron.expert_tensor_parallel_size": "parallel.expert_tensor",
    f"{ACTOR}.megatron.seed": "grpo.seed",
    f"{ACTOR}.megatron.dist_checkpointing_path": "model",
    f"{REF}.megatron.dist_checkpointing_path": "model",
    "reward.custom_reward_function.path": "data (its task decides the reward)",
    "trainer.total_training_steps": "steps",
    "trainer.save_freq": "save_every",
    "trainer.test_freq": "validate_every",
    "trainer.max_actor_ckpt_to_keep": "keep_checkpoints",
    "trainer.default_local_dir": "(always results/<run>/train/checkpoints)",
    "trainer.nnodes": "nodes",
    "trainer.n_gpus_per_node": "gpus_per_node",
    "trainer.device": "device",
    "trainer.resume_mode": "(always auto)",
}


def transformer_overrides(fields: Mapping[str, Any], role: str = ACTOR) -> dict[str, Any]:
    """Return the verl keys that set fields of Megatron's TransformerConfig, of the actor.

    The reference follows the actor as long as it has no field of its own: with one, verl gives it none of the actor's,
    not the attention backend either, of which Megatron-core takes but one in a process.
    """
    return {f"{role}.megatron.override_transformer_config.{field}": value for field, value in fields.items()}


@dataclass(frozen=True)
class MicroBatches:
    """What one pass on a GPU takes: so many responses, or as many as make up so many tokens."""

    update: int
    log_prob: int
    """Of a pass for log-probabilities, of the policy and of the reference model."""
    by_tokens: bool = False


@dataclass(frozen=True)
class VerlConfig:
    """The complete verl config of a run: what runs of its kind share, and its own values."""

    template: Template
    values: Mapping[str, Any]

    def text(self) -> str:
        """Return it as YAML; equal settings give equal text."""
        return self.template.text(self.values)

    def flat(self) -> dict[str, Any]:
        """Return it as dotted keys with plain values."""
        return self.template.flat(self.values)

    def plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        return self.template.plain(self.values)


def resolve(
    name: str,
    run: Run,
    data: Data,
    parallel: Parallel,
    micro_batches: MicroBatches,
    files: "RunFiles",
    further: Mapping[str, Any],
    cache_folder: Path | None = None,
) -> tuple[VerlConfig | None, list[Problem]]:
    """Return the complete verl config of a run, or the problems of its `verl:` section.

    `further` are dotted verl keys that something else decides: the device (rollout engine, Ray's view of the
    machine), the model, the evaluation that validation follows.
    What was composed is kept in `cache_folder`: composing takes Hydra and OmegaConf more than a second.
    """
    problems = _check_form(name, run.verl)
    if problems:
        return None, problems
    extra = flatten(run.verl)
    settings = settings_of(run, data, parallel, micro_batches, files) | dict(further) | extra
    values, shared = split_settings(settings)
    # with the names of `extra`: a template is kept only after they have been checked
    names = {"settings": sorted(values), "extra": sorted(extra)}
    key = fingerprint({"verl": installed_version(), "names": names, "shared": shared})
    template = _known_template(key, cache_folder)
    if template is None:
        problems = _check_extra(name, extra)
        if problems:
            return None, problems
        try:
            template = make_template(settings, merge)
        except SlipwayError as error:
            return None, [Problem(f"runs.{name}.verl", None, str(error))]
        _keep_template(key, template, cache_folder)
    return VerlConfig(template, values), []


# by the content that they follow from, so that they hold for the life of the process
_templates: dict[str, Template] = {}


def _known_template(key: str, folder: Path | None) -> Template | None:
    if key not in _templates and folder is not None and (file := folder / f"{key}.json").is_file():
        # damaged, it is made again
        with contextlib.suppress(ValueError, KeyError, TypeError):
            _templates[key] = Template.from_json(file.read_text(encoding="utf-8"))
    return _templates.get(key)


def _keep_template(key: str, template: Template, folder: Path | None) -> None:
    _templates[key] = template
    if folder is not None:
        write_text(folder / f"{key}.json", template.to_json())


def merge(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return verl's composed config with dotted `settings` laid over it and every interpolation resolved.

    Raises `SlipwayError` where OmegaConf cannot: an interpolation of what is not there, a key below a single value.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    merged = _compose().copy()
    OmegaConf.set_struct(merged, False)
    try:
        for key, value in settings.items():
            OmegaConf.update(merged, key, value, merge=False, force_add=True)
        resolved = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise SlipwayError(f"cannot be laid over verl's config: {str(error).partition(chr(10))[0]}") from None
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


class RunFiles:
    """Absolute paths that go into a run's verl config."""

    def __init__(self, model: Path, megatron: Path, train: Path, heldout: Path, checkpoints: Path):
        self.model = model.absolute()
        self.megatron = megatron.absolute()
        self.train = train.absolute()
        self.heldout = heldout.absolute()
        self.checkpoints = checkpoints.absolute()


def settings_of(
    run: Run, data: Data, parallel: Parallel, micro_batches: MicroBatches, files: RunFiles
) -> dict[str, Any]:
    """Return the dotted verl keys that follow from a run's settings."""
    grpo = run.grpo
    schedule_steps = ENDLESS_SCHEDULE_STEPS if grpo.lr_schedule == "constant" else run.steps
    settings: dict[str, Any] = {
        "algorithm.adv_estimator": "grpo",
        "critic.enable": False,
        "data.train_files": str(files.train),
        "data.val_files": str(files.heldout),
        "data.train_batch_size": grpo.prompts_per_step,
        "data.max_prompt_length": grpo.max_prompt_length,
        "data.max_response_length": grpo.max_response_length,
        "data.seed": grpo.seed,
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.path": str(files.model),
        f"{ROLLOUT}.n": grpo.samples_per_prompt,
        f"{ROLLOUT}.temperature": grpo.temperature,
        f"{ROLLOUT}.top_p": grpo.top_p,
        f"{ROLLOUT}.seed": grpo.seed,
        f"{ROLLOUT}.tensor_model_parallel_size": parallel.rollout_tensor,
        f"{ROLLOUT}.max_model_len": grpo.max_prompt_length + grpo.max_response_length,
        # measures how far the rollout engine's probabilities are from the trainer's
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ACTOR}.ppo_mini_batch_size": grpo.mini_batch_prompts or grpo.prompts_per_step,
        f"{ACTOR}.data_loader_seed": grpo.seed,
        f"{ACTOR}.optim.lr": grpo.learning_rate,
        f"{ACTOR}.optim.lr_decay_style": grpo.lr_schedule,
        f"{ACTOR}.optim.lr_decay_steps": schedule_steps,
        f"{ACTOR}.optim.lr_warmup_steps": grpo.lr_warmup_steps,
        # else warm-up and decay begin again at every resume
        f"{ACTOR}.optim.use_checkpoint_opt_param_scheduler": True,
        f"{ACTOR}.optim.weight_decay": grpo.weight_decay,
        f"{ACTOR}.optim.clip_grad": grpo.max_grad_norm,
        f"{ACTOR}.use_kl_loss": grpo.kl_coefficient > 0,
        f"{ACTOR}.kl_loss_coef": grpo.kl_coefficient,
        f"{ACTOR}.kl_loss_type": grpo.kl_type,
        f"{ACTOR}.clip_ratio": grpo.clip_ratio,
        f"{ACTOR}.clip_ratio_low": grpo.clip_ratio,
        f"{ACTOR}.clip_ratio_high": grpo.clip_ratio,
        f"{ACTOR}.entropy_coeff": grpo.entropy_coefficient,
        f"{ACTOR}.calculate_entropy": True,  # the report draws it
        f"{ACTOR}.megatron.tensor_model_parallel_size": parallel.tensor,
        f"{ACTOR}.megatron.pipeline_model_parallel_size": parallel.pipeline,
        f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size": parallel.virtual_pipeline,
        f"{ACTOR}.megatron.context_parallel_size": parallel.context,
        f"{ACTOR}.megatron.expert_model_parallel_size": parallel.expert,
        f"{ACTOR}.megatron.expert_tensor_parallel_size": parallel.expert_tensor,
        f"{ACTOR}.megatron.sequence_parallel": parallel.tensor > 1,
        f"{ACTOR}.megatron.seed": grpo.seed,
        # mbridge, not Megatron-Bridge: the one that is pinned
        f"{ACTOR}.megatron.vanilla_mbridge": True,
        "reward.custom_reward_function.path": "pkg://slipway.rewards.verl_function",
        "reward.custom_reward_function.name": "compute_score",
        "trainer.project_name": "slipway",
        "trainer.experiment_name": files.checkpoints.parent.parent.name,
        "trainer.logger": ["console", "file"],
        "trainer.total_training_steps": run.steps,
        # epochs only bound the loop; steps decide
        "trainer.total_epochs": math.ceil(run.steps * grpo.prompts_per_step / data.train) + 1,
        "trainer.save_freq": run.save_every,
        "trainer.test_freq": run.validate_every or -1,
        "trainer.val_before_train": run.validate_every > 0,
        # the job removes old ones (launch/checkpoints.py): verl forgets at each start which ones it has written
        "trainer.max_actor_ckpt_to_keep": None,
        "trainer.default_local_dir": str(files.checkpoints),
        "trainer.nnodes": run.nodes,
        "trainer.n_gpus_per_node": run.gpus_per_node,
        "trainer.resume_mode": "auto",
    }
    settings |= micro_batch_settings(micro_batches)
    for role in (ACTOR, REF):
        settings |= {
            f"{role}.megatron.use_dist_checkpointing": True,
            f"{role}.megatron.dist_checkpointing_path": str(files.megatron),
        }
    return settings


def micro_batch_settings(micro_batches: MicroBatches) -> dict[str, Any]:
    """Return the dotted verl keys that say how large a pass is."""
    form = _form(micro_batches.by_tokens)
    return {
        f"{ACTOR}.use_dynamic_bsz": micro_batches.by_tokens,
        f"{ACTOR}.ppo_{form}": micro_batches.update,
        f"{ROLLOUT}.log_prob_{form}": micro_batches.log_prob,
        f"{REF}.log_prob_{form}": micro_batches.log_prob,
    }


def micro_batches_of(identity: Mapping[str, Any]) -> MicroBatches:
    """Return what a flat verl config says of the same."""
    by_tokens = identity[f"{ACTOR}.use_dynamic_bsz"] is True
    form = _form(by_tokens)
    return MicroBatches(identity[f"{ACTOR}.ppo_{form}"], identity[f"{ROLLOUT}.log_prob_{form}"], by_tokens)


def _form(by_tokens: bool) -> str:
    return "max_token_len_per_gpu" if by_tokens else "micro_batch_size_per_gpu"


def config_folder() -> Path:
    """Return the folder with verl's own config files, without importing verl (seconds)."""
    found = importlib.util.find_spec("verl")
    if found is None or not found.submodule_search_locations:
        raise SlipwayError("verl is not installed here; install envs/requirements.lock")
    return Path(found.submodule_search_locations[0]) / "trainer" / "config"


@cache
def installed_version() -> str:
    """Return verl's version."""
    return importlib.metadata.version("verl")


@cache
def _compose() -> Any:
    from hydra import compose, initialize_config_dir  # half a second, not needed when the result is cached

    with initialize_config_dir(config_dir=str(config_folder()), version_base=None):
        return compose("ppo_trainer", overrides=["model_engine=megatron"])


def composed_defaults() -> dict[str, Any]:
    """Return the default of every key of the installed verl's config, interpolations left as they are."""
    from omegaconf import OmegaConf

    return flatten(OmegaConf.to_container(_compose(), resolve=False))  # type: ignore[arg-type]


def _check_form(name: str, extra: Mapping[str, Any]) -> list[Problem]:
    """Return what OmegaConf cannot hold, and keys that are given in two ways."""
    problems = []
    seen: set[str] = set()
    for key, value in dotted_leaves(extra):
        full = f"runs.{name}.verl.{key}"
        if key in seen:
            problems.append(Problem(full, value, "given twice, dotted and nested.", "Give it once."))
        seen.add(key)
        if not _is_plain(value):
            kind = type(value).__name__
            problems.append(Problem(full, value, f"verl's config holds no value of type {kind}.", "Put it in quotes."))
    return problems


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(entry) for key, entry in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _check_extra(name: str, extra: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for key, value in extra.items():
        full = f"runs.{name}.verl.{key}"
        if key in OWNED:
            setting = OWNED[key]
            remedy = setting if setting.startswith("(") else f"Set runs.{name}.{setting}."
            problems.append(Problem(full, value, "Slipway sets this key itself.", remedy))
        elif (instead := meant(key, verl_defaults())) is not None:
            problems.append(Problem(full, value, "verl has no such key.", instead))
    return problems
