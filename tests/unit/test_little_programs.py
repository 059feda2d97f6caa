"""The demo's programming problems: distinct, each with tests that its own program passes and no simpler one does."""

import pytest

from slipway.data.little_programs import main, problems
from slipway.errors import SlipwayError


def passes(program: str, problem: dict[str, str]) -> bool:
    namespace: dict[str, object] = {}
    exec(program, namespace)
    try:
        exec(problem["test"], namespace)
    except AssertionError:
        return False
    return True


def test_gold_programs_pass_and_constants_do_not() -> None:
    made = problems(300, seed=1)
    assert len({problem["prompt"] for problem in made}) == 300
    for problem in made:
        assert passes(problem["canonical_solution"], problem)
        assert not passes("def f(a, b, c):\n    return 0", problem)


def test_words_and_programs_say_the_same() -> None:
    by_words = {problem["prompt"]: problem["canonical_solution"] for problem in problems(9900, seed=0)}
    assert by_words["# f(a, b, c) is a plus b, times 3\n"].endswith("return (a + b) * 3")
    assert by_words["# f(a, b, c) is a minus 2, or c if that is larger\n"].endswith("return max(a - 2, c)")


def test_equal_seeds_give_equal_problems(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(50, seed=3) == problems(50, seed=3) != problems(50, seed=4)
    file = tmp_path / "problems.jsonl"
    monkeypatch.setattr("sys.argv", ["little_programs", str(file), "--problems", "20"])
    main()
    assert len(file.read_text().splitlines()) == 20
    with pytest.raises(SlipwayError, match="there are only"):
        problems(10**6, seed=0)
