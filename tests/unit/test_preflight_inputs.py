"""Training problems that are evaluated on."""

from pathlib import Path

import pytest

from slipway.config.load import read_yaml
from slipway.config.schema import Data
from slipway.data import prepare_data
from slipway.data.rows import read_rows
from slipway.preflight.inputs import check_disjoint

PRESET = Path(__file__).resolve().parents[2] / "workflow/presets/benchmarks/reasoning-gym.yaml"
COUNTDOWN = {"task": "reasoning_gym", "sources": [{"dataset": "countdown"}]}


def made(folder: Path, split: str, **settings: object) -> list[dict]:
    prepare_data(Data.model_validate(COUNTDOWN | settings), folder)
    return read_rows(folder / f"{split}.parquet")


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    return made(tmp_path_factory.mktemp("train"), "train", train=200, heldout=10, instruction="Think.")


def test_a_question_is_the_same_under_another_instruction(train: list[dict], tmp_path: Path) -> None:
    heldout = made(tmp_path / "heldout", "heldout", train=0, heldout=40, seed=1, instruction="Answer at once.")
    [finding] = check_disjoint("demo", train, heldout)
    assert finding.rule == "S2"
    known = {row["extra_info"]["question_id"] for row in train}
    shared = sum(row["extra_info"]["question_id"] in known for row in heldout)
    assert shared > 30
    assert f"{shared} held-out questions are trained on" in finding.why
    # what the finding advises
    apart = made(tmp_path / "apart", "heldout", train=0, heldout=40, seed=211, instruction="Answer at once.")
    assert check_disjoint("demo", train, apart) == []


def test_the_shipped_puzzles_are_none_of_a_training_with_a_common_seed(train: list[dict], tmp_path: Path) -> None:
    shipped = read_yaml(PRESET)["data"]["reasoning-gym"]
    assert check_disjoint("demo", train, made(tmp_path / "shipped", "heldout", **shipped)) == []
