"""Data in bulk: equal bytes whatever the number of processes, every rejected row explained."""

import json
import random
from pathlib import Path

from slipway.config.schema import Data
from slipway.data import Surroundings, prepare_data

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


def planted(folder: Path) -> Data:
    """Return a data set of 4,000 problems in several blocks, with something for each filter that needs no model."""
    chance = random.Random(1)
    rows = records(3000, words=250)
    near = [row | {"question": f"{row['question']} changed"} for row in rows[:100]]
    unusable = [row | {"choices": ["same", "same"]} for row in records(50, seed=2)]
    mixed = [*rows, *rows[200:400], *near, *unusable]
    chance.shuffle(mixed)
    write_lines(folder / "problems.jsonl", mixed)
    write_lines(folder / "others.jsonl", records(400, seed=3))
    write_lines(folder / "evaluation.jsonl", rows[500:600])
    return settings(
        folder / "problems.jsonl",
        sources=[{"path": str(folder / "problems.jsonl"), "weight": 9}, {"path": str(folder / "others.jsonl")}],
        train=2000,
        heldout=200,
        warmup=100,
        system_prompt="Be exact.",
        examples=2,
        filters={"near_duplicates": {}, "decontaminate": {"against": [str(folder / "evaluation.jsonl")]}},
    )


def test_processes_do_not_change_a_byte(tmp_path: Path) -> None:
    data = planted(tmp_path)
    made = {}
    for processes in (1, 2, 3):
        folder = tmp_path / f"by-{processes}"
        manifest = prepare_data(data, folder, Surroundings(processes=processes))
        made[processes] = {path.name: path.read_bytes() for path in sorted(folder.glob("*.*")) if path.is_file()}
        made[processes].pop("provenance.json", None)  # dates and hosts, by design
        assert len(manifest.facts["rejected"]) >= 4
    assert {"train.parquet", "heldout.parquet", "warmup.parquet", "rejected.jsonl", "manifest.json"} <= made[1].keys()
    assert made[1] == made[2] == made[3]


def test_every_rejected_row_is_counted_and_explained(tmp_path: Path) -> None:
    manifest = prepare_data(planted(tmp_path), tmp_path / "out", Surroundings(processes=2))
    rejected = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    counts: dict[str, int] = {}
    for row in rejected:
        counts[row["reason"]] = counts.get(row["reason"], 0) + 1
        # each one is at the place that it names
        lines = (tmp_path / row["file"]).read_text().splitlines()
        assert json.loads(lines[row["line"] - 1])["question"][:50] == row["question"][:50]
    assert counts == manifest.facts["rejected"]
    assert counts["duplicate question"] == 200
    assert counts["near duplicate"] == 100
    assert counts["unparsable"] == 50
    assert counts["contaminated"] > 90
