"""A short training on a CUDA machine by Snakemake: vLLM rollouts, Transformer Engine, and nothing left on the GPU."""

import json
import subprocess

import pytest
import torch
import yaml
from pipeline.test_chain import Clone

from slipway.config.kernels import FLASH_ATTENTION
from slipway.config.paths import ResultPaths
from slipway.manifest import read_manifest
from slipway.surroundings import is_installed

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

STEPS = 2
CONFIG = {
    # 64 numbers a head, which vLLM's attention kernels take
    "models": {"small": {"demo": {"data": "sums", "hidden_size": 256, "steps": 50}}},
    "data": {"sums": {"train": 64, "heldout": 32, "warmup": 1024}},
    "evaluation": {"heldout": {"samples": 2}},
    "runs": {
        "demo": {
            "device": "cuda",
            "gpu_memory_gib": None,
            "steps": STEPS,
            "grpo": {"lr_warmup_steps": 0},
            "verl": {"actor_rollout_ref.rollout.gpu_memory_utilization": 0.3},
        }
    },
}


def gpu_memory_gib() -> float:
    return torch.cuda.get_device_properties(0).total_memory / 2**30


def gpu_processes() -> set[str]:
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    clone = Clone(tmp_path_factory.mktemp("clone"))
    CONFIG["runs"]["demo"]["gpu_memory_gib"] = int(gpu_memory_gib())
    (clone.folder / "test.yaml").write_text(yaml.safe_dump(CONFIG))
    return clone


def metrics(clone: Clone) -> list[dict]:
    (file,) = (clone.folder / "results/demo/train/segments").glob("*/metrics.jsonl")
    return [json.loads(line)["data"] for line in file.read_text().splitlines()]


def test_the_chain_runs_and_leaves_the_gpu_free(clone):
    before = gpu_processes()
    status, said = clone.run()
    assert status == 0, said[-3000:]
    assert gpu_processes() <= before
    assert clone.json("demo/train/manifest.json")["facts"]["steps"] == STEPS


def test_the_trainer_computes_the_probabilities_that_vllm_sampled_by(clone):
    # bfloat16 on both sides; two different models are nats apart
    gaps = [
        step["training/rollout_probs_diff_mean"]
        for step in metrics(clone)
        if "training/rollout_probs_diff_mean" in step
    ]
    assert len(gaps) == STEPS
    assert max(gaps) < 0.03


def test_what_the_machine_lacks_is_recorded(clone):
    (record,) = (clone.folder / "results/demo/train/segments").glob("*/machine.json")
    decided = {key for entry in json.loads(record.read_text())["decisions"] for key in entry["verl"]}
    expected = not any(map(is_installed, FLASH_ATTENTION))
    assert any(key.endswith("attention_backend") for key in decided) is expected


def test_answers_come_from_vllm(clone):
    paths = ResultPaths(clone.folder / "results")
    for which in ("base", "final"):
        assert read_manifest(paths.evaluation_result("demo", which), "evaluate").facts["engine"] == "vllm"
