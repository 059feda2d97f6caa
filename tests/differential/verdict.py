"""Slipway's answer to a case: the one place here that knows the interface of its rules."""

from functools import cache
from typing import Any

from differential.draw import Case
from slipway.config.verl import flatten, merge
from slipway.preflight.findings import Finding, errors
from slipway.preflight.rules import check
from slipway.preflight.subject import Subject

_FIXED = {
    "actor_rollout_ref.model.path": "/model",
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "algorithm.adv_estimator": "grpo",
    "critic.enable": False,
}


def judge(case: Case) -> list[Finding]:
    """Return the errors that preflight finds in a case; none: it would let the case run."""
    drawn = dict(case.keys)
    # no case draws the rollout engine's layout, lengths or group size: nothing asks the engine itself
    ours = ("R22", "R24", "R37", "R42")
    subject = Subject(_sound() | drawn, case.model)
    return [finding for finding in errors(check(subject)) if finding.rule not in ours]


@cache
def _sound() -> dict[str, Any]:
    return flatten(merge(_FIXED))
