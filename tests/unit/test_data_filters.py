"""Filters on planted cases, through the whole stage."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from slipway.config.schema import Data
from slipway.data import Surroundings, hold_out, prepare_data
from slipway.data.rows import read_questions, read_rows
from slipway.data.words import ngrams, split_words
from slipway.errors import SlipwayError
from slipway.models.demo_tokenizer import save_tokenizer, train_tokenizer
from slipway.models.tokenizer import load_tokenizer

SIZES = {"train": 30, "heldout": 10}


@pytest.fixture(autouse=True)
def _rewards_are_tried_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway.data.prepare.check_rewards", lambda rows, score: {"rows": len(rows)})


def words(start: int, count: int = 20) -> str:
    return " ".join(f"w{number}" for number in range(start, start + count))


def make(tmp_path: Path, rows: list[dict], around: Surroundings | None = None, **changes: object) -> tuple[Path, dict]:
    """Prepare `rows`; return the folder, and the rejected by question."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {"task": "math", "sources": [{"path": str(tmp_path / "rows.jsonl")}], **SIZES} | changes
    folder = tmp_path / "made"
    prepare_data(Data.model_validate(values), folder, around)
    return folder, {row["question"]: row for row in map(json.loads, (folder / "rejected.jsonl").open())}


def good(count: int = 60) -> list[dict]:
    return [{"question": words(1000 * number), "answer": str(number)} for number in range(count)]


def test_faulty_and_repeated_rows_are_left_out_and_said(tmp_path: Path) -> None:
    rows = good()
    planted = [
        {"question": " ", "answer": "1"},
        {"question": "no answer", "answer": ""},
        {"question": "bad box", "answer": "\\boxed{1"},
        {"question": rows[3]["question"].upper(), "answer": "3"},
    ]
    folder, rejected = make(tmp_path, rows + planted)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["facts"]["rejected"] == {
        "unparsable": 1,
        "empty question": 1,
        "empty answer": 1,
        "duplicate question": 1,
    }
    assert rejected["bad box"]["detail"] == "the braces of \\boxed do not match"
    assert (rejected["bad box"]["file"], rejected["bad box"]["line"]) == ("rows.jsonl", 63)
    assert rejected[planted[3]["question"]]["detail"].startswith("of ")


def test_near_duplicates_are_left_out_and_only_they(tmp_path: Path) -> None:
    rows = good()
    near = {"question": rows[5]["question"] + " w", "answer": "1"}  # 18 of 19 trigrams
    far = {"question": words(5000, 10) + " " + words(77000, 10), "answer": "1"}  # 8 of 28
    _, rejected = make(tmp_path, [*rows, near, far], filters={"near_duplicates": {"similarity": 0.8}})
    assert list(rejected) == [near["question"]]
    assert rejected[near["question"]]["detail"].endswith("similarity 0.947")


def test_long_prompts_are_measured_by_tokenizer_and_template(tmp_path: Path) -> None:
    save_tokenizer(train_tokenizer([words(0, 50)], ["1"]), tmp_path / "tokenizer")
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    rows = [{"question": words(1000 * number, 5 + number), "answer": "1"} for number in range(60)]
    rows.append({"question": "ä" * 400, "answer": "1"})

    def tokens(question: str) -> int:
        messages = [{"role": "system", "content": "Think."}, {"role": "user", "content": f"Go.\n{question}"}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    lengths = {row["question"]: tokens(row["question"]) for row in rows}
    limit = sorted(lengths.values())[45]
    filters = {"max_prompt_length": {"tokens": limit, "model": "any"}}
    around = Surroundings(tokenizer=tmp_path / "tokenizer")
    _, rejected = make(tmp_path, rows, around, filters=filters, system_prompt="Think.", instruction="Go.")
    expected = {question: f"{length} tokens" for question, length in lengths.items() if length > limit}
    assert {question: row["detail"] for question, row in rejected.items()} == expected != {}


def test_training_shares_no_text_with_any_evaluation(tmp_path: Path) -> None:
    # another entry's held-out problems, and a file
    other = [{"question": words(900_000 + 1000 * number), "answer": "1"} for number in range(20)]
    (tmp_path / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in other))
    settings = {"task": "math", "sources": [{"path": str(tmp_path / "other.jsonl")}], "train": 0, "heldout": 20}
    hold_out(Data.model_validate(settings), tmp_path / "other")
    (tmp_path / "exam.csv").write_text(f"question\n{words(500_000)}\nshort one\n")
    planted = {
        "before " + words(903_002, 13) + " after": "shares with other: " + words(903_002, 13),
        words(500_003, 13): "shares with exam.csv: " + words(500_003, 13),
        "Short, one!": "shares with exam.csv: short one",
    }
    rows = good() + [{"question": question, "answer": "1"} for question in planted]
    rows.append({"question": words(905_002, 12) + " else", "answer": "1"})  # a word less
    filters = {"decontaminate": {"against": [str(tmp_path / "exam.csv")]}}
    around = Surroundings(name="mine", heldout={"other": tmp_path / "other"})
    folder, rejected = make(tmp_path, rows, around, train=49, filters=filters)
    hits = {question: row["detail"] for question, row in rejected.items() if row["reason"] == "contaminated"}
    heldout = set(read_questions(folder / "heldout.parquet"))
    assert hits == {question: detail for question, detail in planted.items() if question not in heldout}
    assert len(hits) >= 2
    facts = json.loads((folder / "manifest.json").read_text())["facts"]
    assert len(facts["contaminated"]) == len(hits)
    assert all(hit.startswith("rows.jsonl line 6") for hit in facts["contaminated"])


def test_own_heldout_text_is_not_trained_on(tmp_path: Path) -> None:
    # each problem has a near twin of other numbers around the same thirteen words
    rows = [
        {"question": f"{name} {words(1000 * number, 13)} {name}", "answer": "1"}
        for number in range(60)
        for name in ("one", "two")
    ]
    folder, rejected = make(tmp_path, rows)
    core = {" ".join(question.split()[1:-1]) for question in read_questions(folder / "heldout.parquet")}
    trained = {" ".join(question.split()[1:-1]) for question in read_questions(folder / "train.parquet")}
    assert not core & trained
    assert len(rejected) == 2 * len(core) - 10 > 0
    folder, rejected = make(tmp_path, rows, filters={"decontaminate": {"enabled": False}})
    assert not rejected


def test_held_out_problems_do_not_depend_on_filters_of_training(tmp_path: Path) -> None:
    rows = good()
    folder, _ = make(tmp_path, rows)
    before = (folder / "heldout.parquet").read_bytes()
    ids = {row["extra_info"]["question_id"] for row in read_rows(folder / "train.parquet")}
    chosen = sorted(ids)[:20]
    samples = [{"question_id": name, "correct": place % 4 < 2} for name in chosen for place in range(4)]
    samples += [{"question_id": chosen[0], "correct": True}] * 100  # nearly always
    samples = [sample for sample in samples if sample["question_id"] != chosen[1]]  # never asked
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    filters = {"pass_rate": {"file": str(tmp_path / "samples.jsonl"), "min": 0.1, "max": 0.9}}
    folder, rejected = make(tmp_path, rows, train=18, filters=filters)
    assert {row["extra_info"]["question_id"] for row in read_rows(folder / "train.parquet")} == set(chosen[2:])
    details = {row["question_id"]: row["detail"] for row in rejected.values()}
    assert details[chosen[0]] == "0.980769"
    assert details[chosen[1]] == "not in the evaluation"
    assert (folder / "heldout.parquet").read_bytes() == before
    settings = Data(task="math", sources=[{"path": str(tmp_path / "rows.jsonl")}], **SIZES)
    hold_out(settings, tmp_path / "alone")
    assert (tmp_path / "alone" / "heldout.parquet").read_bytes() == before


def test_examples_stand_in_every_prompt_and_in_no_split(tmp_path: Path) -> None:
    rows = good(42)
    rows[0]["answer"] = "2 + 3 = 5\n#### 5"
    folder, _ = make(tmp_path, rows, examples=2, system_prompt="Think.", instruction="Go.")
    for split in SIZES:
        for row in read_rows(folder / f"{split}.parquet"):
            roles = [message["role"] for message in row["prompt"]]
            assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
            assert row["prompt"][1]["content"] == f"Go.\n{rows[0]['question']}"
            assert row["prompt"][2]["content"].startswith("2 + 3 = 5\n")
            question = json.loads(row["extra_info"]["entry"])["question"]
            assert row["prompt"][-1]["content"] == f"Go.\n{question}"
            assert question not in (rows[0]["question"], rows[1]["question"])
    (tmp_path / "exam.jsonl").write_text(json.dumps({"question": rows[1]["question"]}))
    with pytest.raises(SlipwayError, match=r"rows\.jsonl line 2: is one of the 2 examples, and shares with .* exam"):
        make(tmp_path, rows, examples=2, filters={"decontaminate": {"against": [str(tmp_path / "exam.jsonl")]}})


def test_sources_are_mixed_by_weight(tmp_path: Path) -> None:
    for name, start in {"a": 0, "b": 500_000}.items():
        rows = [{"question": words(start + 1000 * number), "answer": "1"} for number in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = [{"path": str(tmp_path / "a.jsonl"), "weight": 3.0}, {"path": str(tmp_path / "b.jsonl")}]
    settings = Data.model_validate({"task": "math", "sources": sources, "train": 40, "heldout": 8})
    manifest = prepare_data(settings, tmp_path / "made")
    assert [source["used"] for source in manifest.facts["sources"]] == [
        {"heldout": 6, "train": 30},
        {"heldout": 2, "train": 10},
    ]
    rows = read_rows(tmp_path / "made" / "train.parquet")
    assert sum(row["data_source"] == "math/a" for row in rows) == 30
    with pytest.raises(SlipwayError, match=r"sources\[0\]: a gave only 60 usable problems in 60 records .* need 66"):
        prepare_data(settings.model_copy(update={"train": 80}), tmp_path / "made")


def test_words_of_ascii_and_other_text_are_the_same() -> None:
    texts = ["Is 3.5 > 2, or not?", "", "  ", "a", "It's A-B"]
    plain, starts = split_words(pa.array(texts))
    mixed, mixed_starts = split_words(pa.array([*texts, "Größe: Ä, 数学"]))
    assert plain.to_pylist() == ["is", "3", "5", "2", "or", "not", "a", "it", "s", "a", "b"]
    assert mixed.to_pylist() == [*plain.to_pylist(), "größe", "ä", "数学"]
    assert mixed_starts.tolist()[:-1] == starts.tolist() == [0, 6, 6, 6, 7, 11]
    sliced, _ = split_words(pa.array(["dropped", *texts]).slice(1))
    assert sliced.equals(plain)
    hashes, offsets = ngrams(pa.array(["a b c d", "b c d", "b c", "c"]), 3)
    assert offsets.tolist() == [0, 2, 3, 4, 5]
    assert hashes[1] == hashes[2]
    assert len(set(hashes.tolist())) == 4


@pytest.mark.parametrize(
    "texts", [["a b c d e", "b c d"], ["a b", "c", ""], ["", "!"], ["a", "b c d e f", "a b", "b c d"], []]
)
def test_ngrams_are_told_apart_by_their_words_alone(texts: list[str]) -> None:
    size = 3
    expected = []
    for text in texts:
        found = [word for word in text.split() if word.isalpha()]
        runs = max(1, len(found) - size + 1) if found else 0
        expected.append([" ".join(found[start : start + size]) for start in range(runs)])
    hashes, offsets = ngrams(pa.array(texts, pa.string()), size)
    assert np.diff(offsets).tolist() == list(map(len, expected))
    grams = [gram for row in expected for gram in row]
    assert len(hashes) == len(grams)
    assert [first == second for first in hashes.tolist() for second in hashes.tolist()] == [
        first == second for first in grams for second in grams
    ]
