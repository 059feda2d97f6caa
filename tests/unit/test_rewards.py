"""What a response earns, called as evaluation and as verl call it."""

import json

import pytest

from slipway.errors import SlipwayError
from slipway.rewards import extract_answer, score
from slipway.rewards.verl_function import compute_score


def entry(answer: str = "12", dataset: str = "chain_sum", **changes: object) -> str:
    question = "State the final answer to the following arithmetic problem: 5 + 7 ="
    problem = {"dataset": dataset, "parameters": {}, "question": question, "answer": answer, "metadata": {}}
    return json.dumps(problem | changes)


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
    assert extract_answer(response) == (answer, tagged)


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
    "broken", ["not json", "[]", "{}", entry(dataset="no_such_dataset"), json.dumps({"dataset": "chain_sum"})]
)
def test_a_broken_entry_raises(broken: str) -> None:
    with pytest.raises(SlipwayError, match="prepare the data again"):
        score("12", broken)


def row(**changes: object) -> dict:
    return {
        "data_source": "reasoning_gym/chain_sum",
        "solution_str": "<answer>12</answer>",
        "ground_truth": "12",
        "extra_info": {"dataset": "chain_sum", "entry": entry(), "num_turns": None},
    } | changes


def test_verl_gets_a_number_for_everything_it_logs() -> None:
    assert compute_score(**row()) == {"score": 1.0, "correct": 1.0, "answered": 1.0, "tagged": 1.0}
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
