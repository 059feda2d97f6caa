"""Taking all rows of a jagged nested tensor one after the other, as verl's engine does: torch's way and Slipway's.

One line of JSON: seconds by number of rows for both, the medians of several turns, and their ratio.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nested._internal import ops

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workflow"))
from slipway.launch.verl_changes import nested_rows

SELECT = torch.ops.aten.select.int
TOKENS = 200


def main() -> None:
    """Measure both in turn and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[64, 256, 512])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    of_torch = ops.JAGGED_OPS_TABLE[SELECT]
    nested_rows.install()
    ways = {"torch": of_torch, "slipway": ops.JAGGED_OPS_TABLE[SELECT]}
    figures: dict[str, dict[int, float]] = {name: {} for name in ways}
    for rows in arguments.rows:
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(arguments.repeat):
            for name, way in ways.items():
                ops.JAGGED_OPS_TABLE[SELECT] = way
                seconds[name].append(timed(rows, arguments.device))
        for name in ways:
            figures[name][rows] = round(statistics.median(seconds[name]), 5)
    ratios = {rows: round(figures["torch"][rows] / figures["slipway"][rows], 1) for rows in arguments.rows}
    print(json.dumps({"torch_s": figures["torch"], "slipway_s": figures["slipway"], "ratio": ratios}))


def timed(rows: int, device: str) -> float:
    """Return the seconds that all rows of a fresh tensor take, GPU work included."""
    parts = [torch.zeros(TOKENS + row % 7, dtype=torch.int64, device=device) for row in range(rows)]
    nested = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    for row in range(rows):
        nested[row]
    wait()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
