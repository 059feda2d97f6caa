"""verl's synchronous trainer, which also saves and ends when its job has to stop."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer
from verl.workers.rollout.replica import get_rollout_replica_class

from slipway.launch import TRAINER
from slipway.launch.stop import StopWatch

# What verl's engine and loss read of a batch (verl/workers/engine/megatron/transformer_impl.py, prepare_model_inputs;
# verl/workers/utils/losses.py, ppo_loss); a field that a batch does not have is left out.
ENGINE_FIELDS = [
    *("prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids", "routed_experts"),
    *("rollout_log_probs", "old_log_probs", "ref_log_prob", "advantages", "returns", "rollout_is_weights"),
]


@register_trainer(TRAINER)
class StoppableTrainer(PPOTrainerSync):
    """verl's synchronous trainer with four changes; chosen by `trainer.v1.trainer_mode`.

    It imports the rollout engine while workers start, asks at the end of each step whether its job has to stop, adds
    the reward's components to its metrics, and sends the engine only the fields that it reads. verl sends all: prompts
    in words, what the reward returned and other Python objects, one for each response, cost a small model's pass more
    than the model does.
    """

    def __init__(self, config: Any) -> None:
        # verl's own code asks in many places whether the mode is "sync", which this one is
        config.trainer.v1.trainer_mode = "sync"
        super().__init__(config=config)
        self._watch = StopWatch.from_environment()
        self._saved_step = 0

    def _init_resource_pool_mgr(self) -> None:
        """Begin importing the rollout engine (vLLM takes over ten seconds), which verl does once its workers are ready.

        From here on this process only waits for them: they import Megatron and load the model.
        """
        super()._init_resource_pool_mgr()
        rollout = self.config.actor_rollout_ref.rollout
        threading.Thread(
            target=get_rollout_replica_class, args=(rollout.name, rollout.disaggregation.enabled), daemon=True
        ).start()

    def on_step_begin(self) -> None:
        """Start the clock."""
        self._watch.step_begins()
        super().on_step_begin()

    def on_step_end(self) -> None:
        """Save and make this the last step when the job has to stop."""
        if self.global_steps < self.total_training_steps and self._watch.must_stop():
            if self._saved_step != self.global_steps:
                with marked_timer("save_checkpoint", self.timing_raw, color="green"):
                    self._save_checkpoint()
            # verl's loop ends by itself after this step
            self.total_training_steps = self.global_steps
        super().on_step_end()

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Log what the reward function returned besides the reward; verl itself does so in validation only."""
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        fields = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        infos = [fields_of.get("reward_extra_info", {}) for fields_of in fields.pop("extra_fields").tolist()]
        metrics.update(means_of_components(infos))

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return super()._compute_old_log_prob(replace(batch, fields=ENGINE_FIELDS), metrics)

    def _compute_ref_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return super()._compute_ref_log_prob(replace(batch, fields=ENGINE_FIELDS), metrics)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return super()._update_actor(replace(batch, fields=ENGINE_FIELDS), metrics)

    def _save_checkpoint(self) -> None:
        began = time.monotonic()
        super()._save_checkpoint()
        self._saved_step = self.global_steps
        self._watch.saved(time.monotonic() - began)


def means_of_components(infos: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean over a step's responses of every number that the reward function returned, as `reward/<name>`.

    Responses of one step are scored by one data set's settings, and so have the same components.
    """
    names = infos[0].keys() if infos else ()
    return {f"reward/{name}": sum(info[name] for info in infos) / len(infos) for name in names}
