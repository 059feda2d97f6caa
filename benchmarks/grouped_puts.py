"""Storing a step's responses in TransferQueue: verl's way, each by itself, against Slipway's; seconds, and their ratio.

    PYTHONPATH=workflow python benchmarks/grouped_puts.py

Rows are those of an agent loop with answers of up to 128 tokens; all are finished at the same time.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workflow"))
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from slipway.config.verl import merge
from slipway.launch.verl_changes.grouped_puts import GroupedPuts


def main() -> None:
    """Take turns, so that both meet the same load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    config = OmegaConf.create(merge({"transfer_queue.backend.SimpleStorage.num_data_storage_units": 2}))
    tq.init(config.transfer_queue)
    rows = [response(random.Random(number)) for number in range(arguments.responses)]
    found: dict[str, list[float]] = {"verl": [], "slipway": []}
    for turn in range(arguments.rounds):
        for name, put in (("verl", alone), ("slipway", GroupedPuts(tq.async_kv_batch_put).put)):
            keys = [f"{name}{turn}_{number}" for number in range(len(rows))]
            found[name].append(asyncio.run(seconds(put, keys, rows)))
            check(keys, rows)
    tq.close()
    medians = {f"{name}_s": round(statistics.median(values), 3) for name, values in found.items()}
    print(json.dumps(medians | {"ratio": round(medians["verl_s"] / medians["slipway_s"], 1)}))


async def alone(keys: list[str], partition_id: str, fields: list[dict[str, Any]], tags: list[dict[str, Any]]) -> None:
    """Store as verl's worker does."""
    table = list_of_dict_to_tensordict(fields)
    await tq.async_kv_batch_put(keys=keys, partition_id=partition_id, fields=table, tags=tags)


async def seconds(put: Callable[..., Any], keys: list[str], rows: list[dict[str, Any]]) -> float:
    """Return how long it takes until all are stored."""
    began = time.perf_counter()
    await asyncio.gather(
        *(put([key], "train", [row], [{"status": "success"}]) for key, row in zip(keys, rows, strict=True))
    )
    return time.perf_counter() - began


def check(keys: list[str], rows: list[dict[str, Any]]) -> None:
    """Raise unless what is stored is what was put."""
    stored = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["responses", "uid"])
    for row, responses, uid in zip(rows, stored["responses"].unbind(), stored["uid"], strict=True):
        assert torch.equal(row["responses"], responses) and row["uid"] == getattr(uid, "data", uid)


def response(chance: random.Random) -> dict[str, Any]:
    """Return a row as an agent loop makes it."""
    length = chance.randint(4, 128)
    prompt, answer = torch.arange(60), torch.arange(length)
    return {
        "prompts": prompt,
        "responses": answer,
        "response_mask": torch.ones(length, dtype=torch.int64),
        "loss_mask": torch.ones(length, dtype=torch.int64),
        "input_ids": torch.cat([prompt, answer]),
        "position_ids": torch.arange(60 + length),
        "rollout_log_probs": torch.zeros(length),
        "rm_scores": torch.zeros(length),
        "uid": f"{chance.random()}",
        "raw_prompt": [{"role": "user", "content": "What is 1 + 2?"}],
        "reward_model": {"ground_truth": "3"},
        "extra_fields": {"reward_extra_info": {"accuracy": 1.0}},
        "multi_modal_inputs": {},
    }


if __name__ == "__main__":
    main()
