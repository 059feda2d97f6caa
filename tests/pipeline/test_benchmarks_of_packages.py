"""Benchmarks that come with packages, whole: every question is there, and every gold answer is right by its scorer."""

from pathlib import Path

import pytest
from unit.test_benchmarks import benchmark_data

from slipway.config.schema import Data
from slipway.data import prepare_data
from slipway.data.rows import read_rows


@pytest.mark.parametrize("name", ["humaneval", "reasoning-gym"])
def test_those_of_packages_are_made_whole_and_their_gold_answers_are_right(name: str, tmp_path: Path) -> None:
    settings = benchmark_data()[name].model_dump()
    # the package's own programs, which the sandbox's tests run inside it
    settings["reward"]["run_code_without_sandbox"] = True
    manifest = prepare_data(Data.model_validate(settings), tmp_path)
    assert manifest.facts["problems"] == {"heldout": settings["heldout"]}
    sources = {row["data_source"] for row in read_rows(tmp_path / "heldout.parquet")}
    assert sources == {f"{settings['task']}/{source}" for source in _names(settings)}


def _names(settings: dict) -> list[str]:
    return ["HumanEval"] if settings["task"] == "code" else [source["dataset"] for source in settings["sources"]]
