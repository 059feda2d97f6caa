"""Where things are below the results folder: the one place that knows."""

import re
from dataclasses import dataclass
from pathlib import Path

# Names of folders beside the runs'; no run may be called so.
RESERVED_RUN_NAMES = ("data", "models", "compare")

# Which of a run's models: what it began with, that of its last step, or that of an earlier one.
BASE, FINAL = "base", "final"
STEP = re.compile(r"step-([1-9][0-9]*)")


def name_of_step(step: int) -> str:
    """Return the name of the model of an earlier step."""
    return f"step-{step}"


def step_of(which: str) -> int | None:
    """Return the step of an earlier model; None for the base and the last one."""
    match = STEP.fullmatch(which)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class ResultPaths:
    """Paths below `root`, usually `results`."""

    root: Path

    @property
    def own(self) -> Path:
        """Folder of the main process: its lock, copies of the config, what it has composed already."""
        return self.root / ".slipway"

    @property
    def composed(self) -> Path:
        """Cache of templates of verl configs, by content."""
        return self.own / "verl"

    @property
    def accepted_data(self) -> Path:
        """Folder of empty files named by the content of data settings that have been found sound."""
        return self.own / "data"

    # -- data and models, shared by runs -------------------------------------------------------------------
    def data(self, name: str) -> Path:
        """Folder of a prepared data set: manifest.json, train/heldout/warmup.parquet."""
        return self.root / "data" / name

    def held_out(self, name: str) -> Path:
        """Folder of a data set's held-out problems as others are compared with them."""
        return self.data(name) / "heldout"

    def hf_model(self, name: str) -> Path:
        """Folder of a model that Slipway made or downloaded, in Hugging Face format."""
        return self.root / "models" / name / "hf"

    def megatron_model(self, name: str) -> Path:
        """Folder of a converted model: manifest.json, and the checkpoint in `checkpoint/`."""
        return self.root / "models" / name / "megatron"

    # -- one run -------------------------------------------------------------------------------------------
    def run(self, name: str) -> Path:
        """Folder of a run."""
        return self.root / name

    def verl_config(self, run: str) -> Path:
        """The complete verl config of a run, written by the main process."""
        return self.run(run) / "verl.yaml"

    def preflight(self, run: str) -> Path:
        """Folder of preflight's findings; the declared output is `preflight.json` beside it."""
        return self.run(run) / "preflight"

    def train(self, run: str) -> Path:
        """Folder of the training: checkpoints, metrics, logs, job, manifest.json."""
        return self.run(run) / "train"

    def checkpoints(self, run: str) -> Path:
        """Folder of verl's checkpoints: `global_step_<n>/`."""
        return self.train(run) / "checkpoints"

    def metrics(self, run: str) -> Path:
        """Training metrics, one JSON object a step."""
        return self.train(run) / "metrics.jsonl"

    def trained_model(self, run: str, which: str = FINAL) -> Path:
        """Folder of a trained model in Hugging Face format: of the last step, or of an earlier one (`step-<n>`)."""
        return self.run(run) / ("model" if which == FINAL else f"model-{which}")

    def evaluation(self, run: str, which: str) -> Path:
        """Folder of the samples of one evaluated model (`base`, `final` or `step-<n>`)."""
        return self.run(run) / "eval" / which

    def evaluation_result(self, run: str, which: str) -> Path:
        """Declared result of an evaluation."""
        return self.run(run) / "eval" / f"{which}.json"
