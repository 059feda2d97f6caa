"""Making the agent loop of one response: verl's way by hydra against Slipway's, milliseconds, and their ratio.

PYTHONPATH=workflow python benchmarks/agent_loops.py
"""

import asyncio
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workflow"))
import hydra
from omegaconf import OmegaConf
from verl.experimental.agent_loop import agent_loop

from slipway.config.verl import merge
from slipway.launch.verl_changes.agent_loops import instantiate

ROUNDS, LOOPS = 5, 200


async def main() -> None:
    """Take turns, so that both meet the same load."""
    # verl warns for each of them that it knows no special tokens of the model
    logging.getLogger("verl.utils.tokenizer.continuous_token_wiring").setLevel(logging.ERROR)
    config = OmegaConf.create(merge({}))
    found: dict[str, list[float]] = {"hydra": [], "slipway": []}
    for _ in range(ROUNDS):
        for name, make in (("hydra", hydra.utils.instantiate), ("slipway", instantiate)):
            found[name].append(milliseconds(make, config))
    medians = {f"{name}_ms": round(statistics.median(values), 3) for name, values in found.items()}
    print(json.dumps(medians | {"ratio": round(medians["hydra_ms"] / medians["slipway_ms"], 1)}))


def milliseconds(make: Callable[..., Any], config: Any) -> float:
    """Return what one loop takes, in the mean over `LOOPS`."""
    began = time.perf_counter()
    for _ in range(LOOPS):
        make(
            config=agent_loop._agent_loop_registry["single_turn_agent"],
            trainer_config=agent_loop.DictConfigWrap(config=config),
            server_manager=None,
            tokenizer=None,
            processor=None,
            hf_model_type="llama",
            dataset_cls=None,
            data_config=agent_loop.DictConfigWrap(config.data),
            tools=agent_loop.ToolListWrap([]),
        )
    return (time.perf_counter() - began) / LOOPS * 1000


if __name__ == "__main__":
    asyncio.run(main())
