"""Faults of sources, met by one process or several: each names file and place."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slipway.config.schema import Data
from slipway.data import Surroundings, hold_out, prepare_data
from slipway.errors import SlipwayError

WORDS = [f"word{index}" for index in range(2000)]


def question(chance: random.Random, words: int = 30) -> str:
    return " ".join(chance.choices(WORDS, k=words))


def records(count: int, words: int = 30, seed: int = 0) -> list[dict[str, object]]:
    """Return multiple-choice problems without two equal ones."""
    chance = random.Random(seed)
    return [
        {"question": question(chance, words), "choices": [f"{index}a", f"{index}b", f"{index}c"], "answer": "B"}
        for index in range(count)
    ]


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def settings(path: Path, **changes: object) -> Data:
    values = {"task": "multiple_choice", "sources": [{"path": str(path)}], "train": 20, "heldout": 10}
    return Data.model_validate(values | changes)


# -- faults name file and place -----------------------------------------------------------------------------------
GOOD = b'{"question": "q", "choices": ["a", "b"], "answer": "A"}\n'


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{oops\n", "not JSON"),
        (b"[1, 2]\n", "list, expected a JSON object"),
        (b'{"question": "\xff"}\n', "not JSON"),
        (b'{"query": "q"}\n', r"has no column 'choices'; it has query\. .*`columns`"),
        (b'{"question": ["q"], "choices": ["a", "b"], "answer": "A"}\n', "question is list .*expected text"),
    ],
    ids=["not json", "no object", "not utf-8", "no column", "no text"],
)
def test_a_bad_line_is_named(line: bytes, message: str, processes: int, tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    # beyond the first block, so that lines are counted across blocks, and several workers have work
    good = GOOD.replace(b'"q"', b'"' + b"q" * 1000 + b'"')
    before = 2500
    path.write_bytes(good * before + b"\n" + line + good * before)
    with pytest.raises(SlipwayError, match=rf"problems\.jsonl line {before + 2}: {message}"):
        hold_out(settings(path), tmp_path / "out", Surroundings(processes=processes))
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not (tmp_path / "out" / ".work").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q,3\n", "line 6: 2 fields, but the header has 3"),
        ('"q,"[""a"", ""b""]",A\n', "line 6: not CSV"),
    ],
    ids=["fields", "quotes"],
)
def test_a_bad_csv_line_is_named_by_the_line_it_begins_on(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "problems.csv"
    path.write_text(f'question,choices,answer\n"of\nthree\nlines","[""a"", ""b""]",A\n\n{line}')
    with pytest.raises(SlipwayError, match=rf"problems\.csv {message}"):
        hold_out(settings(path), tmp_path / "out")


def test_a_csv_without_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "problems.csv"
    path.write_bytes(b"question,choices,answer\nq,x,A\ncaf\xe9,x,A\n")
    with pytest.raises(SlipwayError, match=r"problems\.csv line 3: not UTF-8"):
        hold_out(settings(path), tmp_path / "out")


def test_an_unusable_parquet_row_is_named_across_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "problems.parquet"
    rows = records(40)
    rows[37]["choices"] = ["same", "same"]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=16)
    prepare_data(settings(path), tmp_path / "out", Surroundings(processes=2))
    (rejected,) = map(json.loads, (tmp_path / "out" / "rejected.jsonl").read_text().splitlines())
    assert (rejected["file"], rejected["row"], rejected["reason"]) == ("problems.parquet", 37, "unparsable")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("problems.parquet", b"PAR1 and then nothing", r"problems\.parquet: not a whole parquet file"),
        ("problems.csv", b"\xff\n", r"problems\.csv line 1: not UTF-8"),
        ("problems.json", b"{}", r"data\.data\.sources\[0\]\.path: .*is none of \.jsonl, \.csv, \.parquet"),
    ],
)
def test_a_file_that_is_no_source_is_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SlipwayError, match=message):
        hold_out(settings(path), tmp_path / "out")


def test_an_absent_file_is_named_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(SlipwayError, match=r"data\.sums\.sources\[0\]\.path: .*absent\.jsonl': no such file"):
        hold_out(settings(tmp_path / "absent.jsonl"), tmp_path / "out", Surroundings(name="sums"))


def test_too_few_problems_say_why(tmp_path: Path) -> None:
    rows = records(20)
    path = write_lines(tmp_path / "problems.jsonl", [*rows, *rows])
    with pytest.raises(SlipwayError, match=r"only 20 usable .*in 40 records \(\{'duplicate question': 20\}\).*need 30"):
        hold_out(settings(path), tmp_path / "out")
