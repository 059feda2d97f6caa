"""Data made for real from reasoning-gym: content, splits, refusals."""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from slipway.config.schema import Data
from slipway.data import pool, prepare_data
from slipway.data.canary import check_rewards
from slipway.data.records import Problem, Record
from slipway.data.rows import read_rows
from slipway.data.sources import GeneratedSource
from slipway.data.splits import check_splits
from slipway.errors import SlipwayError
from slipway.manifest import Manifest
from slipway.rewards import Score, score

SPLITS = ("train", "heldout", "warmup")


def settings(dataset: str = "chain_sum", parameters: dict | None = None, **changes: object) -> Data:
    # three terms of one digit: 4000 problems, so that 300 draws hold some twice
    if parameters is None:
        parameters = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}
    sources = [{"dataset": dataset, "parameters": parameters}]
    values = {"task": "reasoning_gym", "sources": sources, "instruction": "Be exact."}
    return Data(**(values | {"train": 400, "heldout": 128, "warmup": 128} | changes))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("data")
    return folder, prepare_data(settings(), folder)


def test_rows_are_in_verls_format(made: tuple[Path, Manifest]) -> None:
    folder, _ = made
    for name, size in zip(SPLITS, (400, 128, 128), strict=True):
        rows = read_rows(folder / f"{name}.parquet")
        assert len(rows) == size
        for row in rows:
            entry = json.loads(row["extra_info"]["entry"])
            assert row["data_source"] == "reasoning_gym/chain_sum"
            assert row["ability"] == "arithmetic"
            assert row["prompt"] == [{"role": "user", "content": f"Be exact.\n{entry['question']}"}]
            assert row["reward_model"] == {"style": "rule", "ground_truth": entry["answer"]}
            assert row["extra_info"]["split"] == name
            expression = entry["question"].removesuffix(" =").rpartition(": ")[2]
            assert eval(expression) == int(entry["answer"])
            assert score(entry["answer"], row["extra_info"]["entry"], row["extra_info"]["reward"]).correct


def test_no_question_is_in_two_splits(made: tuple[Path, Manifest]) -> None:
    folder, manifest = made
    ids = [row["extra_info"]["question_id"] for name in SPLITS for row in read_rows(folder / f"{name}.parquet")]
    assert len(ids) == len(set(ids)) == 656
    assert manifest.facts["overlap"] == {"heldout/warmup": 0, "heldout/train": 0, "warmup/train": 0}


def test_duplicates_are_rejected_with_their_reason(made: tuple[Path, Manifest]) -> None:
    folder, manifest = made
    rejected = [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]
    assert len(rejected) == manifest.facts["rejected"]["duplicate question"] > 0
    for item in rejected:
        assert item["detail"] == f"of {item['question_id']}"
        assert item["problem"] >= 0


def test_equal_settings_give_equal_bytes(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    folder, manifest = made
    again = prepare_data(settings(), tmp_path)
    assert again == manifest
    assert (tmp_path / "manifest.json").read_bytes() == (folder / "manifest.json").read_bytes()
    other = prepare_data(settings(seed=1), tmp_path)
    assert other.hash_of("train.parquet") != manifest.hash_of("train.parquet")


def test_warmup_is_made_only_when_asked_for(tmp_path: Path) -> None:
    prepare_data(settings(), tmp_path)
    manifest = prepare_data(settings(warmup=0), tmp_path)
    assert not (tmp_path / "warmup.parquet").exists()
    assert {entry.path for entry in manifest.files} == {"train.parquet", "heldout.parquet", "rejected.jsonl"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "chain_sums"}, r"dataset.*'chain_sums'.*nearest: chain_sum"),
        ({"parameters": {"min_term": 2}}, r"parameters\.min_term: .*nearest: min_terms"),
        ({"parameters": {"min_terms": "two"}}, r"parameters\.min_terms: 'two'"),
        ({"parameters": {"allow_negation": "yes"}}, r"parameters\.allow_negation: 'yes'"),
        ({"parameters": {"min_digits": 0, "max_terms": 9}}, r"min_digits: 0: min_digits must be positive"),
        ({"parameters": {"min_terms": 9, "max_terms": 8}}, r"min_terms: 9.*: max_terms must be >= min_terms"),
        ({"parameters": {"seed": 3}}, r"parameters\.seed: 3 .*data\.<name>\.seed"),
        ({"parameters": {"max_terms": 2, "max_digits": 1}, "train": 300}, r"gave only \d+ usable problems.*need 556"),
    ],
)
def test_faults_of_the_settings_are_explained(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(SlipwayError, match=message):
        prepare_data(settings(**changes), tmp_path)
    assert not (tmp_path / "manifest.json").exists()


def test_lists_are_taken_for_tuples() -> None:
    # YAML has no tuples; the config of basic_arithmetic wants lists, that of number_format a list of sizes
    source = GeneratedSource(
        "simple_equations", {"operators": ["+", "-"], "operators_weights": [0.5, 0.5]}, seed=0, size=3
    )
    assert len(list(source.read(source.blocks(0, 3)[0]))) == 3


def test_the_old_form_is_explained() -> None:
    with pytest.raises(
        ValueError, match=r"dataset: belongs to an entry of `sources`; write `sources: \[\{dataset: chain_sum"
    ):
        Data(task="reasoning_gym", dataset="chain_sum", train=1, heldout=1)


def ids(*numbers: int) -> NDArray[np.uint64]:
    return np.array(numbers, dtype=np.uint64)


def test_overlap_is_found() -> None:
    assert check_splits({"train": ids(1, 2), "heldout": ids(3)}) == {"train/heldout": 0}
    with pytest.raises(SlipwayError, match=r"train and heldout share 1 questions, e\.g\. 0{15}2: held-out"):
        check_splits({"train": ids(1, 2), "heldout": ids(2)})
    with pytest.raises(SlipwayError, match="train holds a question more than once"):
        check_splits({"train": ids(1, 1), "heldout": ids(3)})


def graded(correct: bool) -> Score:
    return Score(float(correct), correct, True, True, {"correctness": float(correct)}, "12")


def always(correct: bool) -> Callable[[str, str, str], Score]:
    return lambda response, entry, reward: graded(correct)


def taken_for_right(response: str, entry: str, reward: str) -> Score:
    """Score as correct whatever looks like a number."""
    right = response.removeprefix("<answer>").removesuffix("</answer>").lstrip("-").isdigit()
    return graded(right)


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (always(False), "the gold answer .* scored 0.0"),
        (always(True), "a wrong answer .* scored 1.0"),
        (taken_for_right, "does not tell right from wrong"),
    ],
)
def test_a_faulty_reward_is_caught(made: tuple[Path, Manifest], faulty: Callable, message: str) -> None:
    rows = read_rows(made[0] / "heldout.parquet")
    with pytest.raises(SlipwayError, match=message):
        check_rewards(rows, faulty)
    assert check_rewards(rows, score)["rows"] == 64


@pytest.mark.parametrize("dataset", ["prime_factorization", "power_function"])
def test_datasets_with_manners_of_their_own_are_made(dataset: str, tmp_path: Path) -> None:
    # the scorer of the one raises about words; the config of the other has no validate()
    manifest = prepare_data(settings(dataset=dataset, parameters={}, train=20, heldout=10, warmup=0), tmp_path)
    assert manifest.facts["problems"] == {"heldout": 10, "train": 20}


def test_exact_fractions_of_a_generator_are_kept_as_text(tmp_path: Path) -> None:
    # about one problem in a hundred has one in its notes
    prepare_data(settings("gsm_symbolic", {}, train=0, heldout=300, warmup=0, seed=1), tmp_path)
    entries = [row["extra_info"]["entry"] for row in read_rows(tmp_path / "heldout.parquet")]
    notes = [json.loads(entry)["metadata"]["metadata"]["variables"] for entry in entries]
    assert any(isinstance(note.get("serving_fraction"), str) for note in notes)
    for entry in entries:
        assert score(f"<answer>{json.loads(entry)['answer']}</answer>", entry, "{}").score == 1.0


def test_what_has_no_form_in_json_is_named() -> None:
    record = Record({}, {}, "gsm_symbolic", 7, "problem")
    with pytest.raises(SlipwayError, match=r"gsm_symbolic problem 7: the problem does not go into JSON .*complex"):
        pool._entry("math", Problem("What is i?", "i", {"exact": Fraction(1, 3), "value": 1j}), record)


def test_another_text_of_the_users_function_prepares_again(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def mine(response, answer, entry):\n    return 1.0\n")
    wanted = settings(train=20, heldout=10, warmup=0, reward={"custom": {"function": f"{mine}:mine"}})
    first = prepare_data(wanted, tmp_path / "data")
    assert prepare_data(wanted, tmp_path / "data") == first
    mine.write_text("def mine(response, answer, entry):\n    return 0.5\n")
    assert prepare_data(wanted, tmp_path / "data").fingerprint != first.fingerprint
