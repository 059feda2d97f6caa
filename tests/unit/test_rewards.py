"""What a response earns, called as evaluation and as verl call it."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from slipway.config.schema import Data, Reward
from slipway.errors import SlipwayError
from slipway.rewards import Score, components, reward_text
from slipway.rewards import score as score_row
from slipway.rewards.answers import Answer, tagged_or_whole
from slipway.rewards.verl_function import compute_score


def entry(answer: str = "12", dataset: str = "chain_sum", **changes: object) -> str:
    question = "State the final answer to the following arithmetic problem: 5 + 7 ="
    own = {"dataset": dataset, "parameters": {}, "metadata": {}}
    problem = {"task": "reasoning_gym", "question": question, "answer": answer, "metadata": own | changes}
    return json.dumps(problem)


def score(response: str, problem: str, **reward: object) -> Score:
    return score_row(response, problem, reward_text(Reward(**reward)))


@pytest.mark.parametrize(
    ("response", "answer", "tagged"),
    [
        ("12", "12", False),
        ("  12\n", "12", False),
        ("5 and 7: <answer> 12 </answer>", "12", True),
        ("<answer>11</answer> no, <answer>12</answer>", "12", True),
        ("<answer>1\n2</answer>", "1\n2", True),
        ("<answer></answer>", "", True),
        ("<answer>12", "<answer>12", False),
    ],
)
def test_answer_is_taken_from_the_last_tags_or_is_the_whole(response: str, answer: str, tagged: bool) -> None:
    assert tagged_or_whole(response) == Answer(answer, tagged)


@pytest.mark.parametrize("response", ["12", "<answer>12</answer>", "it is 11, no <answer>+12.0</answer>"])
def test_right_answers_score_one(response: str) -> None:
    result = score(response, entry())
    assert (result.score, result.correct, result.answered) == (1.0, True, True)


@pytest.mark.parametrize("response", ["", "13", "-12", "It is 12.", "<answer>13</answer> 12", "<answer></answer>12"])
def test_other_answers_are_not_correct(response: str) -> None:
    result = score(response, entry())
    assert result.score < 1.0
    assert not result.correct


def test_the_dataset_decides_what_is_right() -> None:
    # `1,000` is 1000 to chain_sum; to a dataset that compares text it is not
    assert score("1,000", entry("1000")).correct
    assert not score("1,000", entry("1000", dataset="letter_counting")).correct


def test_partial_credit_is_the_datasets_own() -> None:
    assert 0.0 < score("the result is 12", entry()).score < 1.0


@pytest.mark.parametrize(
    "broken", ["not json", "[]", "{}", entry(dataset="no_such_dataset"), json.dumps({"task": "reasoning_gym"})]
)
def test_a_broken_entry_raises(broken: str) -> None:
    with pytest.raises(SlipwayError, match="prepare the data again"):
        score("12", broken)


def row(**changes: object) -> dict:
    return {
        "data_source": "reasoning_gym/chain_sum",
        "solution_str": "<answer>12</answer>",
        "ground_truth": "12",
        "extra_info": {"dataset": "chain_sum", "entry": entry(), "reward": reward_text(Reward()), "num_turns": None},
    } | changes


def test_verl_gets_a_number_for_everything_it_logs() -> None:
    assert compute_score(**row()) == {
        "score": 1.0,
        "correct": 1.0,
        "answered": 1.0,
        "tagged": 1.0,
        "correctness": 1.0,
    }
    wrong = compute_score(**row(solution_str="It is 12."))
    assert 0.0 < wrong["score"] < 1.0
    assert (wrong["correct"], wrong["tagged"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"extra_info": None},
        {"extra_info": {"dataset": "chain_sum"}},
        {"data_source": "openai/gsm8k"},
        {"data_source": "reasoning_gym/gcd"},
        {"ground_truth": "13"},
    ],
)
def test_verl_is_told_of_a_row_that_is_not_ours(changes: dict) -> None:
    with pytest.raises(SlipwayError):
        compute_score(**row(**changes))


@pytest.mark.parametrize("response", ["no idea", "<answer>2 x 6</answer>", "2 × x"])
def test_an_answer_about_which_a_scorer_raises_is_wrong_and_no_end_of_training(response: str) -> None:
    # int() of each factor, without a look at it
    problem = entry("2 × 2 × 3", dataset="prime_factorization", metadata={"number": 12, "factors": [2, 2, 3]})
    assert score("2 × 2 × 3", problem).correct
    assert score(response, problem).score < 1.0


CHOICES = {"A": "Paris", "B": "Rome", "C": "a dog"}


def choice(answer: str = "B") -> str:
    problem = {"task": "multiple_choice", "question": "?", "answer": answer, "metadata": {"choices": CHOICES}}
    return json.dumps(problem)


@pytest.mark.parametrize(
    "answer",
    (
        *("B", "b", "(B)", "B.", "B)", "B) Rome", "**B**", r"\boxed{B}", "Rome", " rome. ", "Answer: B"),
        *("The answer is B.", "option (B)", "B: Rome", "[B]", "the correct answer is (B) Rome."),
    ),
)
def test_a_choice_is_taken_by_letter_or_by_text(answer: str) -> None:
    assert score(f"<answer>{answer}</answer>", choice()).correct
    assert score(answer, choice()).correct


@pytest.mark.parametrize(
    "answer", ["A", "D", "A B C", "A or B", "a dog", "Paris", "B) Paris", "", "Be exact", "B and C"]
)
def test_other_choices_and_all_at_once_are_wrong(answer: str) -> None:
    assert not score(f"<answer>{answer}</answer>", choice()).correct


def test_the_composite_is_the_weighted_sum_clipped() -> None:
    untagged = score("B", choice(), correctness=2.0, format=0.5)
    assert (untagged.score, untagged.components) == (2.0, {"correctness": 1.0, "format": 0.0})
    tagged = score("<answer>B</answer>", choice(), correctness=2.0, format=0.5)
    assert tagged.score == 2.5
    assert score("<answer>B</answer>", choice(), correctness=2.0, format=0.5, clip=[-1.0, 2.25]).score == 2.25
    assert tagged.correct
    wrong = score("<answer>A</answer>", choice(), correctness=0.0, format=1.0)
    assert (wrong.score, wrong.correct) == (1.0, False)


@pytest.mark.parametrize(("characters", "penalty"), [(10, 0.0), (20, 0.0), (25, -0.5), (30, -1.0), (99, -1.0)])
def test_length_is_a_soft_penalty(characters: int, penalty: float) -> None:
    limits = {"weight": 0.5, "from_characters": 20, "to_characters": 30}
    result = score("x" * characters, choice(), length=limits)
    assert result.components["length"] == penalty
    assert result.score == 0.5 * penalty


def test_a_function_of_the_users_own_counts(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def short(response, answer, entry):\n    return 1 / len(response) + len(entry['question'])\n")
    text = reward_text(Reward(custom={"function": f"{path}:short", "weight": 2.0}))
    assert score_row("no", choice(), text).score == 3.0
    # rows keep the function that they were prepared with
    path.write_text("def short(response, answer, entry):\n    return 100\n")
    assert score_row("no", choice(), text).score == 3.0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 1 / 0", "ZeroDivisionError: division by zero .line 2 of .*mine.py"),
        ("return None", "returned None to 'B': no finite number"),
        ("return float('nan')", "returned nan"),
        ("return entry['missing']", "KeyError: 'missing'"),
    ],
)
def test_a_fault_in_the_users_function_is_no_silent_zero(body: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"def mine(response, answer, entry):\n    {body}\n")
    with pytest.raises(SlipwayError, match=f"mine.py:mine.*{said}"):
        score("B", choice(), custom={"function": f"{path}:mine"})


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (None, "mine", "cannot be read"),
        ("x = (\n", "mine", "SyntaxError: .*mine.py, line 1"),
        ("import no_such_module", "mine", "ModuleNotFoundError.*line 1"),
        ("x = 1", "mine", "defines no function mine"),
    ],
)
def test_a_users_file_is_tried_when_the_data_is_prepared(
    text: str | None, name: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SlipwayError, match=said):
        reward_text(Reward(custom={"function": f"{path}:{name}"}))


@pytest.mark.parametrize("broken", ["not json", "{}x", '{"correctness": "much"}', '{"corectness": 1}'])
def test_broken_settings_in_a_row_raise(broken: str) -> None:
    with pytest.raises(SlipwayError, match=r"extra_info\.reward: .*prepare the data again"):
        score_row("B", choice(), broken)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"correctness": 0.0}, "every weight is 0"),
        ({"clip": [1.0, 0.0]}, r"must be \[lowest, highest\]"),
        ({"length": {"from_characters": 9, "to_characters": 9}}, "must be above"),
        ({"custom": {"function": "mine"}}, "path.py:function"),
    ],
)
def test_settings_that_reward_nothing_are_refused(settings: dict, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Reward(**settings)


def test_only_programs_have_style() -> None:
    with pytest.raises(ValidationError, match=r"reward\.style is about programs"):
        Data(task="reasoning_gym", sources=[{"dataset": "chain_sum"}], train=1, heldout=1, reward={"style": 1.0})


@pytest.mark.parametrize(
    ("code", "compiles"),
    [("x = 1", 1.0), ("x =", 0.0), ("(" * 5000 + ")" * 5000, 0.0), ("x = 1\0", 0.0), ("", 0.0)],
)
def test_syntax_is_whether_code_compiles(code: str, compiles: float) -> None:
    assert components.syntax(code) == compiles


def test_style_is_the_linters_findings_a_line() -> None:
    assert components.style("def add(a, b):\n    return a + b\n") == 1.0
    assert components.style("import os\n\n\ndef add(a, b):\n    return a + b\n") == pytest.approx(2 / 3)
    assert components.style("import os, sys\n") == 0.0
    assert components.style("def add(") == components.style("") == 0.0


@pytest.mark.parametrize(
    ("answer", "components"),
    [
        ("    return a + 1", {"syntax": 1.0, "style": 1.0}),
        ("    return a +", {"syntax": 0.0, "style": 0.0}),
        ("def f(a):\n    return a", {"syntax": 1.0, "style": 1.0}),
        ("", {"syntax": 0.0, "style": 0.0}),
    ],
)
def test_the_rest_of_a_function_is_judged_with_its_prompt(answer: str, components: dict[str, float]) -> None:
    shown = "def f(a):\n"
    own = {"style": "function", "entry_point": "f", "prompt": shown, "tests": "assert f(1) == 2"}
    problem = json.dumps({"task": "code", "question": shown, "answer": "    return a + 1", "metadata": own})
    result = score(f"```python\n{answer}\n```", problem, syntax=0.1, style=0.1)
    assert {name: result.components[name] for name in components} == components
