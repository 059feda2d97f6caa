"""What settings of Megatron's engine cost and bring, on and off in one sitting: seconds, tokens/s, memory of one GPU.

The engine of benchmarks/memory.py, with one setting changed at a time. Each configuration is built, warmed up by a pass
for log-probabilities and an update, and then timed; a line of JSON each goes to `--out`, a table to the screen, with
every configuration's ratio to the one that it differs from.

    PYTHONPATH=workflow python benchmarks/claims.py --tokenizer <folder of any model> --out claims.jsonl

With VERL_PLATFORM=cpu and --tiny it runs without a GPU, to try the script.
"""

import argparse
import dataclasses
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import memory
from memory import GIB, ONE, SMOL, Configuration

ROUNDS = 3
# of Megatron's model: kept with the figures, since verl, mbridge and Megatron have defaults of their own
FLAGS = ("apply_rope_fusion", "bias_activation_fusion", "gradient_accumulation_fusion", "masked_softmax_fusion")


@dataclass(frozen=True)
class Claim:
    """A setting, and the configuration without it."""

    name: str
    changed: Configuration
    base: str | None = None


LARGE = Configuration(ONE, 8, 1024, micro_batches=4)
SMALL = Configuration(SMOL, 64, 256, micro_batches=4)
MIXED = Configuration(ONE, 8, 1024, micro_batches=4, mixed=True)


def sized(base: Configuration, responses: int) -> Configuration:
    """Return the same update in micro batches of another size."""
    whole = base.responses * base.micro_batches
    return dataclasses.replace(base, responses=responses, micro_batches=whole // responses)


def claims() -> list[Claim]:
    """Return what is measured, the most telling first: a sitting may be cut off."""
    changed = dataclasses.replace
    full = changed(LARGE, recompute=True)
    packed = "lengths 64 to 1,024, packed by tokens"
    by_count = changed(MIXED, by_tokens=False)
    return [
        Claim("1.5 B", LARGE),
        Claim("micro batch 1 instead of 8", sized(LARGE, 1), "1.5 B"),
        Claim("micro batch 2 instead of 8", sized(LARGE, 2), "1.5 B"),
        Claim("micro batch 16 instead of 8", sized(LARGE, 16), "1.5 B"),
        Claim("full recompute", full, "1.5 B"),
        Claim("full recompute, micro batch 32", sized(full, 32), "1.5 B"),
        Claim("selective recompute", changed(LARGE, transformer={"recompute_granularity": "selective"}), "1.5 B"),
        Claim("parameters and optimizer offloaded", changed(LARGE, offload=True), "1.5 B"),
        Claim("optimizer offloaded", changed(LARGE, engine={"optimizer_offload": True}), "1.5 B"),
        Claim("fp16 instead of bf16", changed(LARGE, engine={"dtype": "float16"}), "1.5 B"),
        Claim("rotary embeddings fused", changed(LARGE, transformer={"apply_rope_fusion": True}), "1.5 B"),
        Claim("no bias and activation fusion", changed(LARGE, transformer={"bias_activation_fusion": False}), "1.5 B"),
        Claim("no masked softmax fusion", changed(LARGE, transformer={"masked_softmax_fusion": False}), "1.5 B"),
        Claim(
            "no gradient accumulation fusion",
            changed(LARGE, transformer={"gradient_accumulation_fusion": False}),
            "1.5 B",
        ),
        Claim(packed, MIXED),
        Claim("8 sequences a micro batch, packed", by_count, packed),
        Claim(
            "8 sequences a micro batch, padded",
            changed(by_count, engine={"use_remove_padding": False}),
            packed,
        ),
        Claim("SmolLM2", SMALL),
        Claim("SmolLM2, micro batch 16 instead of 64", sized(SMALL, 16), "SmolLM2"),
        Claim("SmolLM2, micro batch 256", sized(SMALL, 256), "SmolLM2"),
        Claim(
            "SmolLM2, rotary embeddings fused", changed(SMALL, transformer={"apply_rope_fusion": True}), "SmolLM2"
        ),
    ]  # fmt: skip


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with a tokenizer, which verl asks for")
    parser.add_argument("--out", type=Path, required=True, help="file that lines are added to")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no configuration after so many")
    parser.add_argument("--tiny", action="store_true", help="few small layers and short sequences: to try the script")
    arguments = parser.parse_args()
    began = time.monotonic()
    memory.start_process_group()
    done: dict[str, dict[str, Any]] = {}
    for claim in claims():
        if time.monotonic() - began > arguments.seconds:
            print(f"no time left for: {claim.name}")
            continue
        asked = memory.tiny(claim.changed) if arguments.tiny else claim.changed
        with tempfile.TemporaryDirectory() as temporary:
            line = {"name": claim.name, "base": claim.base, "configuration": asdict(asked)}
            line |= timed(asked, memory.make_folder(asked, arguments.tokenizer, Path(temporary)))
        done[claim.name] = line
        with arguments.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(summary(line, done.get(claim.base or "")), flush=True)


def timed(asked: Configuration, folder: Path) -> dict[str, Any]:
    """Return seconds of passes for log-probabilities and of updates, and peaks in bytes; or what went wrong."""
    import torch

    found: dict[str, Any] = {"held_before": torch.cuda.memory_allocated(), "error": None}
    try:
        found |= rounds(memory.build(asked, folder), memory.batch(asked, folder))
    except Exception as fault:  # of any kind: the others are still to be measured
        found["error"] = f"{type(fault).__name__}: {fault}"[:300]
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return found


def rounds(engine: Any, data: Any) -> dict[str, Any]:
    """Time both passes of an engine, `ROUNDS` times each after one that is not counted."""

    def log_probs() -> None:
        with engine.eval_mode():
            engine.infer_batch(data.clone(), loss_function=None)

    def update() -> None:
        with engine.train_mode():
            engine.train_batch(data.clone(), loss_function=memory.mean_negative_log_prob)

    found: dict[str, Any] = {"tokens": int(data["input_ids"].values().numel())}
    found["flags"] = {name: getattr(engine.tf_config, name) for name in FLAGS}
    for name, run in (("log_probs", log_probs), ("update", update)):
        run()  # Adam's moments, kernels and caches
        memory.peaks()
        found[name] = [seconds(run) for _ in range(ROUNDS)]
        found[f"{name}_peaks"] = memory.peaks()
    return found


def seconds(run: Callable[[], None]) -> float:
    """Return how long a call takes, until the GPU is done."""
    import torch

    began = time.monotonic()
    run()
    torch.cuda.synchronize()
    return time.monotonic() - began


def summary(line: dict[str, Any], base: dict[str, Any] | None) -> str:
    """Return a configuration's figures in words, with their ratio to the base's."""
    if line["error"]:
        return f"{line['name']}: {line['error']}"
    parts = []
    for name in ("log_probs", "update"):
        here = statistics.median(line[name])
        parts.append(f"{name} {here:.3f} s, {line['tokens'] / here:,.0f} tokens/s")
        if base and not base["error"]:
            parts[-1] += f" ({here / line['tokens'] * base['tokens'] / statistics.median(base[name]):.2f} x)"
    peak = line["update_peaks"]["allocated"] - line["held_before"]
    return f"{line['name']}: {'; '.join(parts)}; peak {peak / GIB:.1f} GiB"


if __name__ == "__main__":
    main()
