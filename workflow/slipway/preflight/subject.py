"""What the rules judge: a resolved verl config, and what is known of its model and data.

The rules read verl's own keys, so that they serve a run of Slipway's config and anybody's launch script alike.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slipway.config.verl import ACTOR, OWNED, ROLLOUT
from slipway.models.architecture import Architecture
from slipway.models.layout import Layout
from slipway.preflight.findings import Finding, Severity

MEGATRON = f"{ACTOR}.megatron"
TRANSFORMER = f"{MEGATRON}.override_transformer_config"

# field of Layout -> key below a role's `megatron` section
LAYOUT_KEYS = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "virtual_pipeline": "virtual_pipeline_model_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_model_parallel_size",
    "expert_tensor": "expert_tensor_parallel_size",
    "sequence": "sequence_parallel",
    "first_stage_layers": "override_transformer_config.num_layers_in_first_pipeline_stage",
    "last_stage_layers": "override_transformer_config.num_layers_in_last_pipeline_stage",
    "embedding_as_layer": "override_transformer_config.account_for_embedding_in_pipeline_split",
    "loss_as_layer": "override_transformer_config.account_for_loss_in_pipeline_split",
}
# verl/workers/rollout/base.py:89
ROLLOUT_ENGINES = ("vllm", "sglang", "trtllm")
LARGEST = 2**31 - 1
_MAY_BE_NULL = ("virtual_pipeline", "expert_tensor", "first_stage_layers", "last_stage_layers")


@dataclass(frozen=True)
class Subject:
    """A training as verl will see it.

    `settings` are dotted verl keys with plain values; `model` is None where its dimensions are not known;
    `train_prompts` is the number of training prompts, where known; `measures_data` says that prompt lengths are
    measured elsewhere; `engines` are the rollout engines there are; `gpu_memory` is that of one GPU in bytes,
    where known. `name_of` returns how the user calls a verl key.
    """

    settings: Mapping[str, Any]
    model: Architecture | None = None
    train_prompts: int | None = None
    measures_data: bool = False
    engines: tuple[str, ...] = ROLLOUT_ENGINES
    gpu_memory: float | None = None
    name_of: Callable[[str], str] = str

    def get(self, key: str) -> Any:
        """Return a setting; None where it is not set."""
        return self.settings.get(key)

    def count(self, key: str) -> int | None:
        """Return a setting that is a whole number from 1 to `LARGEST`; None for anything else, which R51 reports."""
        value = self.settings.get(key)
        # as in Slipway's own config; arithmetic on more would take for ever
        is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST
        return value if is_count else None

    def number(self, key: str) -> float | None:
        """Return a setting that is a number; None for anything else."""
        value = self.settings.get(key)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def on_megatron(self) -> bool:
        """Whether Megatron-core trains the actor."""
        return bool(self.get(f"{ACTOR}.strategy") == "megatron")

    @property
    def has_reference(self) -> bool:
        """Whether verl builds a reference model (verl/trainer/ppo/utils.py, need_reference_policy)."""
        return self.get("algorithm.use_kl_in_reward") is True or self.get(f"{ACTOR}.use_kl_loss") is True

    @property
    def is_dynamic(self) -> bool:
        """Whether micro batches are made by tokens instead of by responses."""
        return self.get(f"{ACTOR}.use_dynamic_bsz") is True

    @property
    def world(self) -> int | None:
        """Number of training ranks."""
        nodes, gpus = self.count("trainer.nnodes"), self.count("trainer.n_gpus_per_node")
        return nodes * gpus if nodes and gpus else None

    @cached_property
    def layout(self) -> Layout | None:
        """The actor's layout; None where a size is no whole number."""
        return self.layout_of(ACTOR)

    def layout_of(self, role: str) -> Layout | None:
        """Return the layout of actor or reference; None where a size is no whole number."""
        if self.world is None:
            return None
        values: dict[str, Any] = {}
        for name, key in LAYOUT_KEYS.items():
            full = f"{role}.megatron.{key}"
            if name in ("sequence", "embedding_as_layer", "loss_as_layer"):
                values[name] = self.get(full) is True
            elif self.get(full) is None and name in _MAY_BE_NULL:
                values[name] = None
            elif (size := self.count(full)) is None:
                return None
            else:
                values[name] = size
        return Layout(world=self.world, **values)

    @property
    def data_parallel(self) -> int | None:
        """Data-parallel ranks, where the layout fits the world."""
        layout = self.layout
        return layout.data if layout is not None and layout.world % layout.model_ranks == 0 else None

    @property
    def sequence_limit(self) -> int | None:
        """Tokens of the longest prompt with the longest response."""
        prompt, response = self.count(f"{ROLLOUT}.prompt_length"), self.count(f"{ROLLOUT}.response_length")
        return prompt + response if prompt and response else None

    def error(self, rule: str, key: str, why: str, remedy: str = "") -> Finding:
        """Return a finding of what fails, or trains the wrong thing."""
        return self._finding(rule, Severity.ERROR, key, why, remedy)

    def warning(self, rule: str, key: str, why: str, remedy: str = "") -> Finding:
        """Return a finding of what wastes or risks something."""
        return self._finding(rule, Severity.WARNING, key, why, remedy)

    def note(self, rule: str, key: str, why: str, remedy: str = "") -> Finding:
        """Return a finding that is worth knowing."""
        return self._finding(rule, Severity.NOTE, key, why, remedy)

    def _finding(self, rule: str, severity: Severity, key: str, why: str, remedy: str) -> Finding:
        return Finding(rule, severity, self.name_of(key), self.get(key), why, remedy)


def subject_of_run(
    name: str,
    settings: Mapping[str, Any],
    model: Architecture | None,
    train_prompts: int,
    further_engines: tuple[str, ...] = (),
    gpu_memory: float | None = None,
) -> Subject:
    """Return the subject of a run of Slipway's config; keys get the names that the user knows them by."""

    def name_of(key: str) -> str:
        setting = OWNED.get(key, "(")
        return f"runs.{name}.verl.{key}" if setting.startswith("(") else f"runs.{name}.{setting}"

    return Subject(
        settings=settings,
        model=model,
        train_prompts=train_prompts,
        measures_data=True,  # preflight measures every prompt of the prepared data
        engines=ROLLOUT_ENGINES + further_engines,
        gpu_memory=gpu_memory,
        name_of=name_of,
    )
