"""Compare Slipway's verdict with the real stack's: `python -m differential --cases 2000 --seed 1`."""

import argparse
import importlib.metadata
import json
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from differential.draw import draw
from differential.reality import ask
from differential.verdict import judge


def main() -> None:
    """Run the cases, print the disagreements, write a JSON result, and exit with 1 when there is any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others follow it by one")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further case after so long")
    parser.add_argument("--out", type=Path, required=True, help="file for the result")
    args = parser.parse_args()
    print(f"seed {args.seed}, up to {args.cases} cases", flush=True)
    start = time.monotonic()
    counts: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    disagreements: list[dict[str, Any]] = []
    for seed in range(args.seed, args.seed + args.cases):
        if time.monotonic() - start > args.seconds:
            break
        case = draw(seed)
        answer, errors = ask(case), judge(case)
        counts["both accept" if answer.accepts else "both refuse"] += answer.accepts == (not errors)
        if not answer.accepts:
            steps[answer.step] += 1
        if answer.accepts == bool(errors):
            counts["false alarm" if answer.accepts else "missed fault"] += 1
            found = {"case": asdict(case), "stack": asdict(answer), "slipway": [asdict(error) for error in errors]}
            disagreements.append(found)
            print(json.dumps(found), flush=True)
    result = {
        "seed": args.seed,
        "cases": sum(counts.values()),
        "seconds": round(time.monotonic() - start, 1),
        "counts": dict(counts),
        "refused by the stack at": dict(steps),
        "versions": {name: importlib.metadata.version(name) for name in ("verl", "megatron-core", "mbridge", "torch")},
        "disagreements": disagreements,
    }
    args.out.write_text(json.dumps(result, indent=1))
    print(json.dumps({key: value for key, value in result.items() if key != "disagreements"}))
    raise SystemExit(bool(disagreements))


if __name__ == "__main__":
    main()
