"""Answers in the formats that models and data sets write, compared where verl's threads compare them."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from slipway.config.schema import Reward
from slipway.rewards import Score, reward_text, score, worker

RIGHT = [
    (r"\frac{3}{4}", "3/4"),
    (r"\frac{3}{4}", "0.75"),
    (r"\frac34", r"\dfrac{3}{4}"),
    ("1/2", r"\tfrac12"),
    (r"-\frac{5}{2}", "-2.5"),
    (r"\frac{-5}{2}", "-5/2"),
    (r"2\frac{1}{3}", r"\frac{7}{3}"),
    ("7/3", "2 1/3"),
    ("1234567", "1,234,567"),
    ("12,500", "12500"),
    (r"12\,500", "12500"),
    ("1000", "1000.0"),
    (".5", "0.50"),
    ("10{,}000", "10000"),
    ("1000", "10^3"),
    ("0.00012", r"1.2\times 10^{-4}"),
    (r"3\cdot 10^8", "300000000"),
    ("50%", r"50\%"),
    ("50", "50%"),
    (r"50\%", "50"),
    (r"\$18", "18"),
    ("18", "$18"),
    ("18", r"\$18.00"),
    ("12.5%", "0.125"),
    ("5", r"5\text{ cm}"),
    (r"12\text{ cm}^2", "12"),
    ("90", r"90^\circ"),
    ("60", "60 miles per hour"),
    ("42", "42 apples"),
    (r"36\pi\text{ cm}^3", r"36\pi"),
    ("5 cm", "5"),
    ("(0, 1]", r"\left(0, 1\right]"),
    (r"(-\infty, 2)\cup(2, \infty)", r"(-\infty,2) \cup (2,\infty)"),
    ("[1, 3]", "[1,3]"),
    (r"[-\frac12, 2)", "[-0.5, 2)"),
    ("x > 3", "3 < x"),
    (r"\{1, 2, 3\}", r"\{3, 2, 1\}"),
    ("1, 2", "1,2"),
    ("1,2,3", "{1,2,3}"),
    ("1, 2", "2, 1"),
    ("(3, -4)", r"\left( 3, -4 \right)"),
    (r"(1, \frac{1}{2})", "(1, 0.5)"),
    (r"\{1,2\}", "1 and 2"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    ("2x+3", "3+2x"),
    ("x^2-1", "(x-1)(x+1)"),
    (r"\pi/2", r"\frac{\pi}{2}"),
    ("y = 2x + 1", "2x+1"),
    ("x=5", "5"),
    ("5", "x = 5"),
    ("2^{10}", "1024"),
    ("sqrt(2)/2", r"\frac{\sqrt2}{2}"),
    (r"\log_2 8", "3"),
    (r"\binom{5}{2}", "10"),
    ("3+4i", "4i+3"),
    ("7", r"\boxed{7}"),
    ("7", "$7$"),
    ("7", r"\(7\)"),
    ("7", "the answer is 7."),
    ("7", r"\text{7}"),
    (r"\text{east}", "east"),
    (r"\text{Tuesday}", "Tuesday"),
    ("-3", "−3"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}"),
    ("7", "7."),
    (r"\boxed{\frac{1}{2}}", "0.5"),
    ("even", "even"),
    ("#### 42", "42"),
]

WRONG = [
    (r"\frac{3}{4}", "4/3"),
    (r"\frac{3}{4}", "0.7"),
    (r"2\frac{1}{3}", r"\frac{2}{3}"),
    ("1234567", "1,234,568"),
    ("1,234", "1.234"),
    ("1000", "100"),
    ("0.5", "5"),
    ("1.5", "1,5"),
    ("50%", "5%"),
    ("18", "$19"),
    (r"50\%", "0.05"),
    ("5", r"6\text{ cm}"),
    (r"12\text{ cm}^2", "144"),
    (r"90^\circ", "80"),
    ("(0, 1]", "[0, 1]"),
    ("(0, 1]", "(0, 1)"),
    ("[1, 3]", "[1, 4]"),
    (r"(-\infty, 2)", r"(2, \infty)"),
    ("x > 3", "x < 3"),
    ("x > 3", "3"),
    (r"(-\infty, 2)\cup(2, \infty)", r"(-\infty, \infty)"),
    (r"\{1, 2, 3\}", r"\{1, 2\}"),
    ("1, 2", "1"),
    ("(3, -4)", "(-4, 3)"),
    ("(3, -4)", "3"),
    ("1, 2", "1, 2, 3"),
    ("3", "1, 2, 3"),
    (r"\sqrt{8}", r"2\sqrt{3}"),
    ("2x+3", "2x-3"),
    ("x^2-1", "(x-1)^2"),
    (r"\pi/2", "1.57"),
    ("y = 2x + 1", "y = 2x - 1"),
    ("x=5", "x=-5"),
    ("2^{10}", "20"),
    ("7", "-7"),
    ("7", "7x"),
    (r"\text{east}", "west"),
    ("7", ""),
    ("7", "no idea"),
    ("7", "77"),
    ("7", "7 or 8"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
    ("3+4i", "3-4i"),
    ("even", "odd"),
    ("7", "17"),
    ("0", "no idea"),
    ("0", ""),
    ("7", "7^2"),
    ("7", "10-2"),
    ("3", "x"),
    ("12", "1/2"),
    ("1", "1,000"),
    ("7", "7=8"),
    ("7", "7, 8"),
    ("5", "5 million"),
    ("5", "5 pi"),
]


def scored(gold: str, response: str, **reward: object) -> Score:
    problem = {"task": "math", "question": "?", "answer": gold, "metadata": {}}
    # in a thread, as verl does: there, a time limit by signal gives 0 to every answer
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(score, response, json.dumps(problem), reward_text(Reward(**reward))).result()


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_what_means_the_same_is_right(gold: str, answer: str) -> None:
    assert scored(gold, f"<answer>{answer}</answer>").correct


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_what_means_something_else_is_wrong(gold: str, answer: str) -> None:
    assert not scored(gold, f"<answer>{answer}</answer>").correct


@pytest.mark.parametrize(
    ("response", "tagged"),
    [
        (r"3 and 4 give \boxed{\frac{14}{2}}, as was to be shown.", True),
        ("<answer>8</answer> no, <answer>7</answer>", True),
        ("We need 3 + 4 = 7. So after all the final answer is 7.", False),
        ("We need 3 + 4.\nTherefore the answer is $7$.", False),
        ("7", False),
    ],
)
def test_the_answer_is_found_in_a_response(response: str, tagged: bool) -> None:
    result = scored("7", response, format=0.5)
    assert (result.correct, result.tagged, result.components["format"]) == (True, tagged, float(tagged))
    assert not scored("9", response).correct


@pytest.mark.parametrize("answer", ["9^{9^{9^9}}", r"\int_0^1 x^{x^{x^x}} dx"])
def test_an_answer_that_hangs_costs_its_time_limit_and_is_wrong(answer: str) -> None:
    assert scored("7", "7").correct  # the worker has started
    began = time.monotonic()
    assert not scored("7", f"<answer>{answer}</answer>", math_seconds=1.0).correct
    assert time.monotonic() - began < 10
    assert scored("1/2", "0.5").correct


def test_a_worker_that_is_gone_is_replaced() -> None:
    assert worker.call("slipway.rewards.worker_tasks:compiles", ["x = 1"], 5.0, otherwise=None) is True
    assert worker.call("os:_exit", [3], 5.0, otherwise="gone") == "gone"
    assert worker.call("slipway.rewards.worker_tasks:compiles", ["x ="], 5.0, otherwise=None) is False
    first = worker.call("os:getpid", [], 5.0, otherwise=None)
    assert first == worker.call("os:getpid", [], 5.0, otherwise=None) != os.getpid()


def test_answers_of_enormous_length_are_not_waited_for() -> None:
    scored("7", "7")
    began = time.monotonic()
    for text in ("(" * 100_000, "1," * 50_000, r"\frac{" * 20_000):
        assert not scored("7", f"<answer>{text}</answer>").correct
    assert time.monotonic() - began < 5


def test_many_threads_share_the_worker() -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(lambda number: scored(str(number), f"<answer>{number % 50}</answer>").correct, range(200))
        )
    assert answers == [number < 50 for number in range(200)]
