"""The reward is tried in the kind of thread that verl calls it in."""

import signal
import threading
import time

import pytest

from slipway.preflight import reward_canary
from slipway.preflight.reward_canary import check_reward

ROWS = [
    {
        "prompt": [{"role": "user", "content": f"1 + {number} ="}],
        "data_source": "d",
        "reward_model": {"ground_truth": str(number + 1)},
        "extra_info": {"index": number},
    }
    for number in range(20)
]


def exact(data_source, solution_str, ground_truth, extra_info):
    return float(solution_str == ground_truth)


async def awaited(**given):
    return {"score": exact(**given)}


def by_signal(data_source, solution_str, ground_truth, extra_info):
    """As math-verify limits its time: a signal, and an except around it."""
    try:
        signal.signal(signal.SIGALRM, lambda *_: None)
        return float(solution_str == ground_truth)
    except ValueError:
        return 0.0


def generous(**given):
    return 1.0


def broken(**given):
    raise KeyError("extra_info")


@pytest.mark.parametrize("reward", [exact, awaited])
def test_a_sound_reward_has_no_findings_and_a_time(reward):
    findings, seconds = check_reward("sums", ROWS, reward)
    assert findings == []
    assert seconds > 0


@pytest.mark.parametrize(
    ("reward", "rule", "said"),
    [
        (by_signal, "S6", "scores 0.0 instead of 1 in a thread"),
        (generous, "S7", "a wrong answer scores 1.0"),
        (broken, "S6", "raises KeyError"),
    ],
)
def test_a_reward_that_would_mislead_is_an_error(reward, rule, said):
    findings, _ = check_reward("sums", ROWS, reward)
    assert [(finding.rule, finding.severity.value, finding.key) for finding in findings] == [
        (rule, "error", "data.sums")
    ]
    assert said in findings[0].why


def test_by_signal_is_sound_in_the_main_thread():
    assert threading.current_thread() is threading.main_thread()
    assert by_signal("d", "2", "2", {}) == 1.0


def test_a_slow_reward_is_a_warning(monkeypatch):
    monkeypatch.setattr(reward_canary, "SLOW_SECONDS", 0.001)
    findings, seconds = check_reward("sums", ROWS, lambda **given: time.sleep(0.002) or exact(**given))
    assert [(finding.rule, finding.severity.value) for finding in findings] == [("S9", "warning")]
    assert seconds > 0.002
