"""verl's synchronous trainer, which also saves and ends when its job has to stop."""

import time
from typing import Any

from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer

from slipway.launch import TRAINER
from slipway.launch.stop import StopWatch


@register_trainer(TRAINER)
class StoppableTrainer(PPOTrainerSync):
    """Adds one question to the end of each step; everything else is verl's.

    Chosen by `trainer.v1.trainer_mode`.
    """

    def __init__(self, config: Any) -> None:
        # verl's own code asks in many places whether the mode is "sync", which this one is
        config.trainer.v1.trainer_mode = "sync"
        super().__init__(config=config)
        self._watch = StopWatch.from_environment()
        self._saved_step = 0

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

    def _save_checkpoint(self) -> None:
        began = time.monotonic()
        super()._save_checkpoint()
        self._saved_step = self.global_steps
        self._watch.saved(time.monotonic() - began)
