"""Where model-written programs are scored, there must be a sandbox to run them in."""

import json
from collections.abc import Sequence

from slipway.preflight.findings import Finding, Severity
from slipway.preflight.reward_canary import Row
from slipway.rewards import sandbox


def check_sandbox(name: str, rows: Sequence[Row]) -> list[Finding]:
    """Return why data set `name` cannot be scored here; a warning where its settings allow to go on without."""
    extra = rows[0]["extra_info"]
    if json.loads(extra["entry"])["task"] != "code":
        return []
    why = sandbox.unavailable()
    key = f"data.{name}.reward.run_code_without_sandbox"
    if why is None:
        return []
    if json.loads(extra["reward"])["run_code_without_sandbox"]:
        risk = f"{why} Model-written programs will run with all your rights, on your files and network."
        return [Finding("S24", Severity.WARNING, key, True, risk)]
    return [Finding("S24", Severity.ERROR, key, False, why)]
