"""What a launcher is told about one training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slipway.config.site import Site

Executor = Literal["local", "slurm"]
MAIN_PPO = "verl.trainer.main_ppo"


@dataclass(frozen=True)
class Training:
    """What to train: names, files, and the digests of what goes in.

    `config_file` is the resolved verl config and `resolved` its content; `inputs` are digests of the data and model
    manifests; `environment` is what the device needs in the job's environment, `ray_node` what Ray is to be told of a
    node's resources where it cannot see them. `gpus` are the GPUs of a node, 0 on the CPU, `processes` the training
    processes of a node on either. `module` is what `python -m` trains with. Of the checkpoints the newest
    `keep_checkpoints` stay (None: all), and the weights of `evaluated_steps`.
    """

    run: str
    config_file: Path
    resolved: Mapping[str, Any]
    inputs: Mapping[str, str]
    environment: Mapping[str, str]
    train_folder: Path
    runtime_minutes: int
    gpus: int
    nodes: int = 1
    processes: int = 1
    ray_node: Mapping[str, int] = field(default_factory=dict)
    executor: Executor = "local"
    site: Site = field(default_factory=lambda: Site.model_validate({}))
    module: str = MAIN_PPO
    keep_checkpoints: int | None = None
    evaluated_steps: tuple[int, ...] = ()

    @property
    def steps(self) -> int:
        """The step at which the training is complete."""
        return int(self.resolved["trainer"]["total_training_steps"])


@dataclass(frozen=True)
class Ending:
    """How a job ended, in words for the user; `resumable` when only its time was up, or its node was lost."""

    words: str
    resumable: bool = False
