"""verl's own `main_ppo` on the CPU backend: killed in the middle and resumed, it ends where an undisturbed run ends."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.cpu.environment import environment, hydra_overrides
from slipway.launch import VERL_SETTINGS, with_registration

pytestmark = pytest.mark.training

STEPS, SAVE_EVERY = 4, 2
SECONDS = 400  # for one run; most of it is Ray and imports, which a busy machine draws out


class Training:
    """A run of `main_ppo`, in a folder of its own."""

    def __init__(self, folder: Path, settings: list[str]):
        self.folder = folder
        self._command = [sys.executable, "-m", "verl.trainer.main_ppo", *settings]
        folder.mkdir()
        self._segments = 0
        # Ray's sockets live there, and their paths are limited to some hundred characters.
        self._ray = tempfile.mkdtemp(prefix="r-", dir="/tmp")

    def start(self) -> subprocess.Popen:
        import slipway

        self._segments += 1
        variables = {
            "PYTHONPATH": str(Path(slipway.__file__).parents[1]),
            "HF_HUB_OFFLINE": "1",
            "RAY_TMPDIR": self._ray,
            "VERL_FILE_LOGGER_PATH": str(self._metrics),
        }
        with self._log.open("w") as log:
            return subprocess.Popen(
                [*self._command, f"trainer.default_local_dir={self.checkpoints}"],
                cwd=self.folder,
                env=os.environ | with_registration(environment()) | variables,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def _metrics(self) -> Path:
        return self.folder / f"metrics.{self._segments}.jsonl"  # verl empties an existing file

    @property
    def _log(self) -> Path:
        return self.folder / f"log.{self._segments}.txt"

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def steps(self) -> dict[int, dict[str, float]]:
        """Metrics by step, of this segment."""
        if not self._metrics.exists():
            return {}
        records = [json.loads(line) for line in self._metrics.read_text().splitlines()]
        return {record["step"]: record["data"] for record in records}

    def processes(self) -> Iterator[int]:
        """Whatever this run started: it all inherits Ray's folder."""
        mark = f"RAY_TMPDIR={self._ray}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)

    def kill(self) -> None:
        """Kill everything at once, as a dying node does."""
        while alive := list(self.processes()):
            for process in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.2)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._ray, ignore_errors=True)


def finish(training: Training) -> None:
    assert training.start().wait(SECONDS) == 0, training.log()[-5000:]


def kill_during(training: Training, step: int) -> None:
    """Kill the run while it works on `step`."""
    driver = training.start()
    deadline = time.monotonic() + SECONDS
    while step - 1 not in training.steps():
        assert driver.poll() is None, training.log()[-5000:]
        assert time.monotonic() < deadline, training.log()[-5000:]
        time.sleep(0.2)
    time.sleep(0.5)
    training.kill()
    assert driver.wait(10) == -signal.SIGKILL
    assert step not in training.steps()


@pytest.fixture
def settings(tmp_path):
    from tiny_model import REWARD, make_model, make_prompts

    from slipway.convert.to_megatron import convert_megatron

    model, reward = tmp_path / "model", tmp_path / "reward.py"
    make_model(model)
    convert_megatron(model, tmp_path / "megatron")
    reward.write_text(REWARD)
    values = VERL_SETTINGS | {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": make_prompts(tmp_path / "train.parquet", 64),
        "data.val_files": make_prompts(tmp_path / "test.parquet", 8, seed=1),
        "data.train_batch_size": 8,
        "data.max_prompt_length": 64,
        "data.max_response_length": 16,
        "data.seed": 1,
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.rollout.n": 4,
        "actor_rollout_ref.rollout.calculate_log_probs": True,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
        "actor_rollout_ref.actor.use_kl_loss": True,
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 1024,
        "actor_rollout_ref.actor.optim.lr": 1e-3,
        # so that a schedule which starts again would be seen
        "actor_rollout_ref.actor.optim.lr_decay_style": "linear",
        "actor_rollout_ref.actor.optim.lr_warmup_steps": 2,
        "actor_rollout_ref.actor.optim.use_checkpoint_opt_param_scheduler": True,
        "reward.custom_reward_function.path": reward,
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "trainer.total_training_steps": STEPS,
        "trainer.save_freq": SAVE_EVERY,
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        "trainer.logger": "[console,file]",
    }
    for role in ("actor", "ref"):
        values[f"actor_rollout_ref.{role}.megatron.use_dist_checkpointing"] = True
        values[f"actor_rollout_ref.{role}.megatron.dist_checkpointing_path"] = checkpoint_of(tmp_path / "megatron")
    return [*hydra_overrides(), *(f"{key}={value}" for key, value in values.items())]


def checkpoint_of(converted: Path) -> Path:
    (metadata,) = converted.rglob(".metadata")
    return metadata.parent


def tensors(checkpoint: Path) -> dict[str, object]:
    """Everything stored of one step: the model, and the optimizer with its float32 weights and moments."""
    from slipway.convert.dcp_reader import TorchDistReader

    stored = {}
    for part in ("model", "optimizer"):
        reader = TorchDistReader(checkpoint / "actor" / part / "dist_ckpt")
        for key, shape in reader.shapes.items():
            stored[part, key] = reader.read(key, [0] * len(shape), shape)
    return stored


def test_killed_and_resumed_ends_as_undisturbed(settings, tmp_path):
    import torch

    undisturbed = Training(tmp_path / "undisturbed", settings)
    killed = Training(tmp_path / "killed", settings)
    with contextlib.closing(undisturbed), contextlib.closing(killed):
        finish(undisturbed)
        kill_during(killed, step=SAVE_EVERY + 2)
        assert (killed.checkpoints / "latest_checkpointed_iteration.txt").read_text() == str(SAVE_EVERY)
        finish(killed)

    whole, resumed = undisturbed.steps(), killed.steps()
    assert list(resumed) == list(range(SAVE_EVERY + 1, STEPS + 1))
    same = (
        "actor/lr",
        "actor/grad_norm",
        "critic/score/mean",
        "response_length/mean",
        "training/rollout_probs_diff_max",
    )
    for step, metrics in resumed.items():
        assert {key: metrics[key] for key in same} == {key: whole[step][key] for key in same}, step
    # Not a run in which nothing happens: the rate changes each step, and rollout and trainer agree on probabilities.
    assert len({metrics["actor/lr"] for metrics in whole.values()}) > 2
    assert all(metrics["training/rollout_actor_probs_pearson_corr"] > 0.999 for metrics in whole.values())

    expected, found = (tensors(run.checkpoints / f"global_step_{STEPS}") for run in (undisturbed, killed))
    assert expected.keys() == found.keys()
    assert {kind for kind, _ in expected} == {"model", "optimizer"}
    different = [key for key, tensor in expected.items() if not torch.equal(tensor, found[key])]
    assert different == []
    start = tensors(undisturbed.checkpoints / f"global_step_{SAVE_EVERY}")
    assert any(not torch.equal(tensor, start[key]) for key, tensor in expected.items())
