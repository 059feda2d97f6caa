"""How many short programs the code sandbox judges a minute, beside the same programs without it.

Each is a function with tests, so two sandboxes a program: one for the program, one for its tests. `overhead` is the
time with the sandbox over that of bare Python processes doing the same.
"""

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

from slipway.rewards.sandbox import Limits, Sandbox, judge_functions, judge_outputs, require

TESTS = (
    "assert solve(3) == 9\nassert solve(-2) == 4\nassert [solve(x) for x in range(20)] == [x * x for x in range(20)]\n"
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=200, help="programs a measurement (200)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="judged at a time (as many as cores)")
    options = parser.parse_args()
    require()
    functions = per_minute(judge_function, options.programs, options.threads, sandboxed=True)
    bare = per_minute(judge_function, options.programs, options.threads, sandboxed=False)
    outputs = per_minute(judge_output, options.programs, options.threads, sandboxed=True)
    figures = {
        "programs_per_minute": round(functions),
        "without_sandbox_per_minute": round(bare),
        "overhead": round(bare / functions, 2),
        "stdio_runs_per_minute": round(outputs),
        "threads": options.threads,
        "cores": os.cpu_count(),
    }
    print(json.dumps(figures))


def per_minute(judge, programs: int, threads: int, sandboxed: bool) -> float:
    """Return how many programs are judged a minute; each second one is wrong, and must be found so."""
    sandbox = Sandbox(Limits(), sandboxed=sandboxed)
    began = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        passed = list(pool.map(lambda number: judge(number, sandbox), range(programs)))
    if passed != [number % 2 == 0 for number in range(programs)]:
        raise SystemExit(f"{passed.count(True)} of {programs} programs passed, half of them should")
    return 60 * programs / (time.monotonic() - began)


def judge_function(number: int, sandbox: Sandbox) -> bool:
    """Judge a right program for an even number, a wrong one for an odd number."""
    return judge_functions(f"def solve(x):\n    return x * x + {number % 2}", TESTS, "", "solve", sandbox).passed


def judge_output(number: int, sandbox: Sandbox) -> bool:
    """As `judge_function`, for a program that reads and prints."""
    tests = [{"input": "7\n", "output": "49\n"}]
    return judge_outputs(f"x = int(input())\nprint(x * x + {number % 2})", tests, sandbox).passed


if __name__ == "__main__":
    main()
