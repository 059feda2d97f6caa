"""How long the planner takes, from 8 GPUs to 4,096, and how that compares with asking Megatron's arithmetic alone.

The other side enumerates the same layouts and asks `faults` about each, without forecasts of memory and time; the ratio
is what the forecasts cost. Every measurement is a fresh process, as a user starts it, imports not counted.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

CASES = {
    8: "Qwen/Qwen2.5-7B-Instruct",
    64: "Qwen/Qwen2.5-72B",
    256: "deepseek-ai/DeepSeek-V3",
    1024: "Qwen/Qwen3-235B-A22B",
    4096: "Qwen/Qwen3-235B-A22B",
}
PROMPT, RESPONSE = 2048, 8192


def main() -> None:
    """Measure and print the figures as one line of JSON; seconds, medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one[0], int(arguments.one[1]))))
        return
    figures: dict[str, float] = {}
    for gpus, model in CASES.items():
        command = [sys.executable, __file__, "--one", model, str(gpus)]
        runs = [
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for _ in range(arguments.repeat)
        ]
        planning, enumeration = (statistics.median(run[part] for run in runs) for part in ("plan", "enumerate"))
        ratio = planning / enumeration
        print(f"{model} on {gpus} GPUs: {runs[0]['layouts']} layouts, {planning:.3f} s, ratio {ratio:.1f}")
        figures[f"seconds_{gpus}_gpus"] = round(planning, 3)
        figures[f"ratio_{gpus}_gpus"] = round(ratio, 2)
    print(json.dumps(figures))


def one(name: str, gpus: int) -> dict[str, float]:
    """Return the seconds of planning and of enumerating for one model."""
    from slipway.models.known import find_dimensions
    from slipway.preflight.planning.hardware import gpu_named
    from slipway.preflight.planning.search import Machine, layouts, plan_layouts
    from slipway.preflight.planning.workload import Workload

    model, machine = find_dimensions(name), Machine(gpus // 8, 8, gpu_named("H100-80GB"))
    work = Workload(
        prompts=1024,
        samples=16,
        mini_batch=1024,
        prompt_length=PROMPT,
        response_length=RESPONSE,
        micro_tokens=PROMPT + RESPONSE,
        log_prob_tokens=PROMPT + RESPONSE,
    )
    start = time.perf_counter()
    count = sum(1 for _ in layouts(model, machine, work))
    enumerated = time.perf_counter()
    plan_layouts(model, machine, work)
    return {"layouts": count, "enumerate": enumerated - start, "plan": time.perf_counter() - enumerated}


if __name__ == "__main__":
    main()
