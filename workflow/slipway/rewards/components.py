"""What a response can earn or lose besides being right."""

import json
import subprocess
import sys

from slipway.config.schema import LengthPenalty
from slipway.errors import SlipwayError
from slipway.rewards import worker

# Longer than a compiler or a linter takes for what fits into a response.
SECONDS = 10.0
# pycodestyle's and pyflakes' rules, names, and likely bugs.
RULES = "E,W,F,N,B"


def syntax(code: str) -> float:
    """Return 1 for text that compiles as Python, 0 for other text, and for none."""
    if not code.strip():
        return 0.0
    # in another process: a compiler can be brought down by what it is given
    return float(worker.call("slipway.rewards.worker_tasks:compiles", [code], SECONDS, otherwise=False))


def style(code: str) -> float:
    """Return 1 minus ruff's findings a line, at least 0; 0 for what does not compile."""
    lines = [line for line in code.splitlines() if line.strip()]
    if not lines:
        return 0.0
    command = [sys.executable, "-m", "ruff", "check", "--isolated", f"--select={RULES}", "--output-format=json", "-"]
    try:
        # white space around the answer is the response's, not the program's
        ended = subprocess.run(
            command, input=code.strip() + "\n", capture_output=True, encoding="utf-8", errors="replace", timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return 0.0
    if ended.returncode not in (0, 1):
        raise SlipwayError(f"reward.style: ruff does not run: {ended.stderr.strip() or ended.returncode}")
    findings = json.loads(ended.stdout)
    if any(finding["code"] in (None, "invalid-syntax") for finding in findings):
        return 0.0
    return max(0.0, 1.0 - len(findings) / len(lines))


def length(penalty: LengthPenalty, response: str) -> float:
    """Return 0 for a response up to `from_characters`, -1 from `to_characters` on, a straight line between."""
    beyond = len(response) - penalty.from_characters
    return -min(1.0, max(0.0, beyond / (penalty.to_characters - penalty.from_characters)))
