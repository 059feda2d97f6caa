"""The reward is tried in the kind of thread that verl calls it in."""

import json
import signal
import threading
import time

import pytest

from slipway.config.schema import Reward
from slipway.preflight import reward_canary
from slipway.preflight.reward_canary import Groups, check_reward, check_variance, score_as_verl_does
from slipway.rewards import reward_text
from slipway.rewards.verl_function import compute_score

ROWS = [
    {
        "prompt": [{"role": "user", "content": f"1 + {number} ="}],
        "data_source": "d",
        "reward_model": {"ground_truth": str(number + 1)},
        "extra_info": {
            "question_id": f"q{number}",
            "entry": json.dumps({"task": "math", "question": "?", "answer": str(number + 1), "metadata": {}}),
        },
    }
    for number in range(20)
]


def exact(data_source, solution_str, ground_truth, extra_info):
    return float(solution_str == f"<answer>{ground_truth}</answer>")


async def awaited(**given):
    return {"score": exact(**given)}


def by_signal(data_source, solution_str, ground_truth, extra_info):
    """As math-verify limits its time: a signal, and an except around it."""
    try:
        signal.signal(signal.SIGALRM, lambda *_: None)
        return float(solution_str == f"<answer>{ground_truth}</answer>")
    except ValueError:
        return 0.0


def generous(**given):
    return 1.0


def form_only(**given):
    """Rewards the form alone, though it tells right from wrong."""
    return {"score": 1.0, "correctness": exact(**given)}


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
        (form_only, "S7", "a wrong answer earns 1, and the gold answer 1"),
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
    assert by_signal("d", "<answer>2</answer>", "2", {}) == 1.0


def test_a_slow_reward_is_a_warning(monkeypatch):
    monkeypatch.setattr(reward_canary, "SLOW_SECONDS", 0.001)
    findings, seconds = check_reward("sums", ROWS, lambda **given: time.sleep(0.05) or exact(**given))
    assert [(finding.rule, finding.severity.value) for finding in findings] == [("S9", "warning")]
    assert seconds > 0.001


def test_all_responses_are_scored_at_once_as_by_verl():
    meeting = threading.Barrier(3, timeout=10)

    def together(**given):
        meeting.wait()
        return exact(**given)

    asked = [(ROWS[0], "<answer>1</answer>"), (ROWS[1], "<answer>1</answer>"), (ROWS[2], "no")]
    assert score_as_verl_does(together, asked) == [{"score": 1.0}, {"score": 0.0}, {"score": 0.0}]


@pytest.mark.parametrize(("right", "flat", "rules"), [([0, 1], 0, []), ([1, 1], 20, ["S23"]), ([0, 0], 20, ["S23"])])
def test_groups_of_the_base_model_without_variance_are_counted(tmp_path, right, flat, rules):
    lines = []
    for number in range(20):
        for sample, correct in enumerate(right):
            response = f"<answer>{number + correct}</answer>"
            lines.append(json.dumps({"question_id": f"q{number}", "sample": sample, "response": response}))
    # one answer is no group, and a question that is not held out any more is left out
    lines.append(json.dumps({"question_id": "gone", "sample": 0, "response": ""}))
    path = tmp_path / "heldout.jsonl"
    path.write_text("\n".join(lines) + "\n")
    findings, groups = check_variance("demo", path, ROWS, exact)
    assert groups == Groups(20, flat)
    assert [finding.rule for finding in findings] == rules


def test_the_scorer_of_the_task_says_what_is_right_and_wrong():
    findings, _ = check_reward("sums", SLIPWAYS, compute_score)
    assert findings == []
    swapped = [
        row | {"extra_info": row["extra_info"] | {"entry": SLIPWAYS[0]["extra_info"]["entry"]}} for row in SLIPWAYS
    ]
    findings, _ = check_reward("sums", swapped, compute_score)
    assert [finding.rule for finding in findings] == ["S6"]


SLIPWAYS = [
    row
    | {
        "data_source": "math/sums",
        "extra_info": row["extra_info"] | {"dataset": "sums", "reward": reward_text(Reward(format=0.5))},
    }
    for row in ROWS
]
