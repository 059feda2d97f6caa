"""Programs are scored by their tests, in the sandbox."""

import json
import logging

import pytest

from slipway.config.schema import Reward
from slipway.errors import SlipwayError
from slipway.rewards import Score, reward_text, sandbox, scorer_for
from slipway.rewards import score as score_row
from slipway.rewards.sandbox import availability, isolation

pytestmark = pytest.mark.sandbox

HUMAN_EVAL_PROMPT = 'import math\n\ndef half(x):\n    return x / 2\n\ndef area(r: float) -> float:\n    """Area."""\n'
HUMAN_EVAL_TESTS = "def check(candidate):\n    assert abs(candidate(half(4)) - 12.566) < 0.01\n"
PAIRS = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 -5", "output": "0"}]


def entry(answer: str = "", **metadata: object) -> str:
    own = {"style": "function", "entry_point": "add", "prompt": "", "tests": "assert add(1, 2) == 3"} | metadata
    return json.dumps({"task": "code", "question": "?", "answer": answer, "metadata": own})


def score(response: str, problem: str, **reward: object) -> Score:
    return score_row(response, problem, reward_text(Reward(**reward)))


@pytest.mark.parametrize(
    "response",
    [
        "def add(a, b):\n    return a + b",
        "```python\ndef add(a, b):\n    return a + b\n```",
        "First `x`:\n```python\nno\n```\nBetter:\n```\nadd = lambda a, b: a + b\n```\nDone.",
        "<answer>add = sum_of = lambda *n: sum(n)</answer>",
        "```py\ndef add(a, b):\n    return a + b",
    ],
)
def test_a_program_is_found_in_a_response(response: str) -> None:
    assert score(response, entry()).correct


def test_the_asked_form_is_a_block_or_tags() -> None:
    assert score("```python\nadd = 1\n```", entry(), format=1.0).components == {"correctness": 0.0, "format": 1.0}
    assert score("add = 1", entry(), format=1.0).components["format"] == 0.0


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("    return math.pi * r**2", True),
        ("    return 3 * r**2", False),
        ("```python\ndef area(r):\n    return math.pi * r * r\n```", True),
        ("```python\nimport math\ndef area(r: float) -> float:\n    return math.pi * half(r) * r * 2\n```", True),
    ],
)
def test_a_prompt_is_completed_and_its_helpers_are_there(response: str, right: bool) -> None:
    problem = entry(prompt=HUMAN_EVAL_PROMPT, tests=HUMAN_EVAL_TESTS, entry_point="area")
    assert score(response, problem).correct == right


def test_an_expression_completes_a_line() -> None:
    problem = entry(prompt="def add(a, b):\n    return ")
    assert score("<answer>a + b</answer>", problem).correct
    assert not score("<answer>a - b</answer>", problem).correct


@pytest.mark.parametrize(
    ("program", "right"),
    [
        ("print(sum(map(int, input().split())))", True),
        ("import sys\na, b = map(int, sys.stdin.read().split())\nprint(a + b, end='')", True),
        ("print(3)", False),
        ("print(sum(map(int, input().split())))\nraise SystemExit(1)", False),
        ("print('3')\nprint('0')", False),
    ],
)
def test_programs_are_judged_by_what_they_print(program: str, right: bool) -> None:
    assert score(program, entry(style="stdio", tests=PAIRS)).correct == right


@pytest.mark.parametrize(
    ("tests", "program"),
    [
        ("x = [3, 1]\nf(x)\nassert x == [1, 3]", "def f(x): x.sort()"),
        (
            "assert f() == (1, {2}, {'a': [None, True, 1.5, b'x', 2j]})",
            "def f(): return 1, {2}, dict(a=[None, True, 1.5, b'x', 2j])",
        ),
        ("try:\n    f(1)\n    raise SystemExit\nexcept ZeroDivisionError:\n    pass", "def f(x): return x / 0"),
        ("assert f(10**5000) == 10**5000", "def f(x): return x"),
        ("assert str(f('inf')) == 'inf' and f('nan') != f('nan')", "f = float"),
        ("assert f(a=1, *[2]) == 1", "def f(b, a): return a"),
        ("from math import isclose\nassert all(isclose(f(x), x**.5) for x in range(9))", "f = lambda x: x**.5"),
        ("assert f(2) == 4", "class Solution:\n    def f(self, x): return self.g(x)\n    def g(self, x): return 2 * x"),
        ("def check(c):\n    assert c(1) == g(1)", "def f(x): return 2 * x\ndef g(x): return x + x"),
    ],
)
def test_values_reach_the_tests_as_they_are(tests: str, program: str) -> None:
    assert score(program, entry(tests=tests, entry_point="f" if "check" in tests else None)).correct


@pytest.mark.parametrize("tests", ["", "x = 1", "assert True", "def (", "def check(candidate): pass"])
def test_tests_that_test_nothing_raise(tests: str) -> None:
    with pytest.raises(SlipwayError, match=r"never call the program|do not compile"):
        score("def add(a, b): return 1", entry(tests=tests))


@pytest.mark.parametrize(
    "changes", [{"style": "x"}, {"style": "stdio"}, {"style": "stdio", "tests": []}, {"tests": []}]
)
def test_faulty_entries_raise(changes: dict) -> None:
    with pytest.raises(SlipwayError, match=r"extra_info\.entry"):
        score("x = 1", entry(**changes))


def test_what_the_scorer_offers_for_self_tests_is_right_and_wrong() -> None:
    problem = json.loads(entry("def add(a, b):\n    return a + b"))
    scorer = scorer_for("code")
    assert score(scorer.gold_response(problem), json.dumps(problem)).correct
    assert len(scorer.wrong_responses(problem)) > 2
    for response in scorer.wrong_responses(problem):
        assert not score(response, json.dumps(problem)).correct


@pytest.fixture
def no_bubblewrap(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(isolation, "bubblewrap", lambda: None)
    availability.unavailable.cache_clear()
    yield
    availability.unavailable.cache_clear()


@pytest.mark.usefixtures("no_bubblewrap")
def test_without_a_sandbox_nothing_runs_unless_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SlipwayError, match=r"bubblewrap.*is not installed.*run_code_without_sandbox: true"):
        score("def add(a, b): return a + b", entry())
    with caplog.at_level(logging.WARNING):
        assert score("def add(a, b): return a + b", entry(), run_code_without_sandbox=True).correct
        assert not score("def add(a, b): return a", entry(), run_code_without_sandbox=True).correct
    assert [record.message[:7] for record in caplog.records] == ["DANGER:"]


def test_a_failing_bubblewrap_says_what_must_be_allowed(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(isolation, "bubblewrap", lambda: str(broken))
    availability.unavailable.cache_clear()
    why = sandbox.unavailable()
    availability.unavailable.cache_clear()
    assert why is not None
    assert "No permissions to create new namespace" in why
    assert "container" in why or "administrator" in why
