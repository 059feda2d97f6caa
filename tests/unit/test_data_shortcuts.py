"""What is done in a quicker way gives what the plain way gives, on rows made to be hard."""

import json
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from blake3 import blake3

from slipway.config.schema import Data
from slipway.data import prepare_data
from slipway.data.digests import digests, normal_digests
from slipway.data.filters.near_duplicates import _buckets
from slipway.data.pool import _JSON, _entry
from slipway.data.records import Problem, Record
from slipway.data.rendering import Rendering
from slipway.data.rows import read_rows
from slipway.data.sources.files import decode_json

PARTS = [
    *("a", "B", "Ab", "K", "k", "ß", "SS", "ſ", "\u212a", "İ", "é", "数", "🙂", "\x00", "\x7f", '"', "\\"),
    *(" ", " ", " ", "  ", "\t", "\n", "\r\n", "\x0b", "\x1c", "\x1f", "\x85", "\xa0", "\u2003", "\u3000"),
]


def texts(count: int) -> list[str]:
    chance = random.Random(3)
    return ["", " ", "a", "A ", " a", "a b", "a  b", *("".join(chance.choices(PARTS, k=6)) for _ in range(count))]


def first_bits(text: str) -> int:
    return int.from_bytes(blake3(text.encode()).digest(length=8), "big")


@pytest.mark.parametrize("only_ascii", [True, False])
def test_digests_are_those_of_each_text(only_ascii: bool) -> None:
    hard = [text for text in texts(3000) if text.isascii() or not only_ascii]
    for column in (pa.array(hard), pa.array(["dropped ", *hard, " dropped"]).slice(1, len(hard))):
        assert digests(column).tolist() == [first_bits(text) for text in hard]
        assert digests(column, "7\n").tolist() == [first_bits("7\n" + text) for text in hard]
        normal = [first_bits(" ".join(text.split()).casefold()) for text in hard]
        assert normal_digests(column).tolist() == normal
    for empty in ([], [""], ["", ""]):
        column = pa.array(empty, pa.string())
        assert normal_digests(column).tolist() == digests(column).tolist() == [first_bits("")] * len(empty)


LINES = [
    *("-0", "0.1e1", "1E5", "1.0", "1e400", "-1e400", "1e-400", "2.2250738585072011e-308", "0.30000000000000004"),
    *("18446744073709551616", "-9223372036854775809", "123456789012345678901234567890", "9007199254740993.0"),
    *("NaN", "Infinity", "-Infinity", "null", "true", " [1, 2] ", '{"a": 1, "a": 2}', '{"": {"b": [{}]}}'),
    *(r'"\ud800"', r'"\udc00\ud800"', r'"\ud83d\ude42"', r'"\u0000"', '"\x7f"', '"数"', r'"\/\b\f"', "\ufeff1"),
    *("", "01", "1.", ".5", "+1", "[1,]", "{'a': 1}", '{"a"}', "1 2", "nan", "tru", '"a', '"\x01"', '"a\tb"', r'"\x"'),
]


@pytest.mark.parametrize("line", [*(line.encode() for line in LINES), b'"\xff"', b'"\xed\xa0\x80"'], ids=repr)
def test_json_is_read_as_by_the_standard_library(line: bytes) -> None:
    try:
        expected = json.loads(line)
    except ValueError as error:
        with pytest.raises(type(error)) as raised:
            decode_json(line)
        assert str(raised.value) == str(error)
    else:
        # repr tells 1 from 1.0 and from True, and NaN is like itself
        assert repr(decode_json(line)) == repr(expected)


def test_entries_are_as_the_encoder_writes_them() -> None:
    record = Record({}, {}, "a.jsonl", 1, "line")
    for text in texts(500):
        problem = Problem(text, text[::-1], {})
        entry = {"task": "math", "question": problem.question, "answer": problem.answer, "metadata": {}}
        assert _entry("math", problem, record) == _JSON.encode(entry)


def test_buckets_are_the_places_of_equal_keys() -> None:
    keys = np.random.default_rng(0).integers(0, 400, 500).astype(np.uint64)
    expected: dict[int, list[int]] = defaultdict(list)
    for place, key in enumerate(keys.tolist()):
        expected[key].append(place)
    found = [bucket.tolist() for bucket in _buckets(keys)]
    assert found == [places for key, places in sorted(expected.items()) if key and len(places) > 1] != []
    assert list(_buckets(np.arange(5, dtype=np.uint64))) == list(_buckets(np.zeros(0, dtype=np.uint64))) == []


@pytest.mark.parametrize("examples", [(), (("e", "1"), ("f", "2"))])
@pytest.mark.parametrize("system", [None, "Be exact."])
def test_the_column_of_prompts_holds_the_messages_of_each(system: str | None, examples: tuple) -> None:
    rendering = Rendering(system, "Go.", examples)
    hard = texts(50)
    column = rendering.column(pa.array(["dropped", *hard]).slice(1))
    assert column.to_pylist() == [rendering.messages(text) for text in hard]
    assert rendering.column(pa.array([], pa.string())).to_pylist() == []


def test_half_of_a_surrogate_pair_is_said_wherever_it_stands(tmp_path: Path) -> None:
    good = [{"question": f"{number} + 1?", "answer": str(number + 1), "level": "1"} for number in range(10)]
    bad = [
        r'{"question": "\ud800", "answer": "1", "level": "1"}',
        r'{"question": "one \ud800", "answer": "", "level": "1"}',
        r'{"question": "two", "answer": "\udc00", "level": "1"}',
        r'{"question": "three", "answer": "because \ud800\n#### 4", "level": "1"}',
        r'{"question": "four", "answer": "5", "level": "\ud800"}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join([*bad, *map(json.dumps, good)]))
    source = {"path": str(tmp_path / "a.jsonl"), "columns": {"difficulty": "level"}}
    data = Data.model_validate({"task": "math", "sources": [source], "train": 8, "heldout": 2})
    prepare_data(data, tmp_path / "made")
    rejected = [json.loads(line) for line in (tmp_path / "made" / "rejected.jsonl").read_text().splitlines()]
    assert [(row["line"], row["reason"]) for row in rejected] == [(line, "unparsable") for line in range(1, 6)]
    assert all("half of a surrogate pair" in row["detail"] for row in rejected)
    assert len(read_rows(tmp_path / "made" / "train.parquet")) == 8
