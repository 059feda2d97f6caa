"""A finished run's folder, written by hand: what the report reads, without having trained anything."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from slipway.config.paths import ResultPaths
from slipway.config.schema import Data, DemoModel, Evaluation, Model, Run
from slipway.manifest import open_product, write_json
from slipway.report.settings_view import RunSettings
from slipway.statistics import accuracy_interval

QUESTIONS, STEPS = 64, 40


def make_run(root: Path, name: str = "demo", seed: int = 0, better_by: float = 0.4) -> RunSettings:
    """Write everything that a run leaves below `root`, and return its settings."""
    paths, random = ResultPaths(root), np.random.default_rng(seed)
    data = Data(task="reasoning_gym", sources=[{"dataset": "chain_sum"}], train=512, heldout=QUESTIONS, warmup=64)
    settings = RunSettings(
        name=name,
        run=Run(model="small", data="sums", evaluation=["heldout"], device="cpu", gpus_per_node=1, steps=STEPS),
        model=Model(demo=DemoModel(data="sums")),
        data={"sums": data},
        evaluations={"heldout": Evaluation(data="sums")},
    )
    publish("prepare_data", paths.data("sums"), {"heldout.parquet": "held out", "train.parquet": "train"})
    publish("make_demo_model", paths.hf_model("small"), {"config.json": "{}"})
    publish("convert_megatron", paths.megatron_model("small"), {"checkpoint/common.pt": "weights"})
    write_metrics(paths.metrics(name), STEPS, random)
    publish("train", paths.train(name), {}, {"steps": STEPS, "checkpoint": f"checkpoints/global_step_{STEPS}"})
    write_ledger(paths, name)
    publish("export_hf", paths.trained_model(name), {"config.json": "{}"})
    difficulty = random.random(QUESTIONS)
    write_evaluation(paths, name, "base", difficulty < 0.35)
    noise = random.normal(0, 0.1, QUESTIONS)
    write_evaluation(paths, name, "final", difficulty + noise < 0.35 + better_by)
    paths.verl_config(name).write_text("trainer:\n  total_training_steps: 40\n", encoding="utf-8")
    return settings


def publish(
    stage: str,
    folder: Path,
    files: dict[str, str],
    facts: dict[str, Any] | None = None,
    to: Path | None = None,
) -> None:
    """Write `files` into `folder` and publish them as a product of `stage`."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, encoding="utf-8")
    with open_product(stage, to or folder / "manifest.json", folder, {"version": 1}) as product:
        product.publish([folder / path for path in files], facts or {})


def write_metrics(path: Path, steps: int, random: np.random.Generator) -> None:
    """Write a metrics file as verl 0.9.1 logs it (the keys that the report draws, and some more)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for step in range(1, steps + 1):
        timing = {
            "gen": 2.1,
            "old_log_prob": 0.3,
            "ref": 0.22,
            "adv": 0.02,
            "update_actor": 0.55,
            "update_weights": 0.06,
        } | ({"save_checkpoint": 0.9} if step % 20 == 0 else {})
        timing = {key: value * random.uniform(0.9, 1.2) for key, value in timing.items()}
        values = {
            "critic/score/mean": 0.3 + 0.6 * (1 - math.exp(-step / 12)) + random.normal(0, 0.03),
            "critic/score/max": 1.0,
            "reward/score": random.uniform(0.3, 0.9),
            "reward/correct": 0.3 + 0.4 * (1 - math.exp(-step / 12)),
            "reward/style": random.uniform(0.85, 0.95),
            "reward/tagged": 0.5 + 0.4 * (1 - math.exp(-step / 15)),
            "response_length/mean": 14 - 4 * (1 - math.exp(-step / 10)) + random.normal(0, 0.3),
            "response_length/min": 4.0,
            "response_length/max": 14.0 + float(random.integers(0, 3)),
            "response_length/clip_ratio": 0.2 * math.exp(-step / 6),
            "actor/entropy": 1.6 * math.exp(-step / 25) + random.normal(0, 0.02),
            "actor/kl_loss": 0.004 * step + abs(random.normal(0, 0.004)),
            "actor/ppo_kl": random.normal(0, 1e-5),
            "actor/pg_clipfrac": abs(random.normal(0, 0.003)),
            "actor/grad_norm": math.exp(random.normal(-1, 0.4)),
            "actor/lr": 3e-4,
            "training/rollout_probs_diff_mean": 1.5e-6 * random.uniform(0.8, 1.3),
            "rollout_corr/log_ppl_abs_diff": 3e-3 * random.uniform(0.8, 1.3),
            "training/rollout_probs_diff_max": None,
            "perf/throughput": random.uniform(380, 470),
            "actor/perf/max_memory_allocated_gb": 0.63,
            **{f"timing_s/{key}": value for key, value in timing.items()},
            "timing_s/step": sum(timing.values()) + 0.15 + (26 if step == 1 else 0),
        }
        lines.append(json.dumps({"step": step, "data": values}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_ledger(paths: ResultPaths, name: str) -> dict[str, float]:
    """Write the ledger of a training on one device that was preempted after step 26, six steps after its checkpoint.

    Return its totals, hours by state.
    """
    first = [
        ("queued", 45.0),
        ("starting", 60.0),
        ("training", 200.0),
        ("saving", 4.0),
        ("lost", 24.0),
        ("ending", 6.0),
    ]
    second = [("queued", 20.0), ("starting", 55.0), ("training", 120.0), ("saving", 4.0), ("ending", 9.0)]
    segments = []
    for number, (spans, started, first_step, last_step, kept, ended_by) in enumerate(
        [(first, 1000.0, 1, 26, 20, "preempted"), (second, 1344.0, 21, STEPS, STEPS, "finished")], start=1
    ):
        segment = {"segment": number, "job": "17", "ended_by": ended_by, "started": started}
        segment |= {"first_step": first_step, "last_step": last_step, "kept_step": kept}
        segments.append(segment | {state: 0.0 for state, _ in first} | dict(spans) | {"spans": spans})
    totals = {f"{state}_hours": round(sum(one[state] for one in segments) / 3600, 4) for state, _ in first}
    write_json(paths.run(name) / "ledger.json", {"devices": 1, "totals": totals, "segments": segments})
    return totals


def write_evaluation(paths: ResultPaths, run: str, which: str, correct: np.ndarray, weights: str | None = None) -> None:
    """Write one evaluation with a sample per question, right where `correct` is true."""
    samples = []
    for index, right in enumerate(correct):
        answer = str(37 * index + 12)
        response = answer if right else f"{answer}{index % 7}"
        samples.append(
            {
                "question_id": f"{index:016x}",
                "sample": 0,
                "prompt": f"<|user|>Add up: {37 * index} + 12 = ?<|assistant|>",
                "response": response,
                "response_tokens": len(response) + 1,
                "stop": "eos",
                "score": float(right),
                "correct": bool(right),
                "answered": True,
                "tagged": False,
                "components": {"correctness": float(right)},
                "ground_truth": answer,
            }
        )
    interval = accuracy_interval(correct[:, None])
    metrics = {
        "questions": len(correct),
        "samples_per_question": 1,
        "accuracy": float(correct.mean()),
        "accuracy_ci95": [interval.low, interval.high],
        "mean_score": float(correct.mean()),
        "answered_rate": 1.0,
        "tagged_rate": 0.0,
        "components": {"correctness": float(correct.mean())},
        "response_tokens_mean": float(np.mean([sample["response_tokens"] for sample in samples])),
        "response_tokens_max": max(sample["response_tokens"] for sample in samples),
        "stopped_by_length": 0.0,
        "settings": {"temperature": 0.0, "heldout": "same"},
    }
    facts = {
        "checkpoint": which,
        "weights": weights or {"base": "b" * 64, "final": "f" * 64}[which],
        "evaluations": {"heldout": metrics},
    }
    publish(
        "evaluate",
        paths.evaluation(run, which),
        {
            "heldout.jsonl": "".join(json.dumps(sample) + "\n" for sample in samples),
            "questions/heldout.jsonl": "".join(
                json.dumps({"question_id": sample["question_id"], "data_source": "reasoning_gym/chain_sum"}) + "\n"
                for sample in samples
            ),
        },
        facts,
        to=paths.evaluation_result(run, which),
    )
