"""The config is strict, names every fault at once, and says what would work."""

import copy
from pathlib import Path

import pytest
import yaml

from slipway.config.load import ConfigError, check, load_config, overlay, read_yaml
from slipway.errors import SlipwayError

ROOT = Path(__file__).resolve().parents[2]
GOOD = {
    "models": {"small": {"demo": {"data": "sums"}}},
    "data": {
        "sums": {
            "task": "reasoning_gym",
            "sources": [{"dataset": "chain_sum"}],
            "train": 100,
            "heldout": 50,
            "warmup": 10,
        }
    },
    "evaluation": {"heldout": {"data": "sums"}},
    "runs": {"demo": {"model": "small", "data": "sums", "evaluation": ["heldout"], "steps": 4}},
}


def problems_of(changes: dict) -> list[str]:
    return [str(problem) for problem in check(overlay(copy.deepcopy(GOOD), changes))[1]]


def test_a_good_config_has_no_problems():
    config, problems = check(GOOD)
    assert problems == []
    assert config.runs["demo"].grpo.samples_per_prompt == 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"runs": {"demo": {"stepps": 4}}}, ["runs.demo.stepps = 4", "unknown key", "Did you mean steps?"]),
        ({"runs": {"demo": {"grpo": {"learning_rte": 0.1}}}}, ["runs.demo.grpo.learning_rte", "learning_rate?"]),
        ({"runs": {"demo": {"steps": "4"}}}, ["runs.demo.steps = '4'", "valid integer"]),
        ({"runs": {"demo": {"steps": 0}}}, ["runs.demo.steps = 0", "greater than or equal to 1"]),
        ({"runs": {"demo": {"steps": True}}}, ["runs.demo.steps = True", "integer"]),
        ({"runs": {"demo": {"grpo": {"samples_per_prompt": 1}}}}, ["samples_per_prompt = 1", "equal to 2"]),
        ({"runs": {"demo": {"grpo": {"kl_type": "reverse_kl"}}}}, ["kl_type = 'reverse_kl'", "low_var_kl"]),
        ({"runs": {"demo": {"parallel": {"tensr": 2}}}}, ["runs.demo.parallel.tensr = 2", "Did you mean tensor?"]),
        ({"runs": {"demo": {"parallel": "atuo"}}}, ["runs.demo.parallel = 'atuo'", "'auto'"]),
        ({"runs": {"demo": {"model": "smal"}}}, ["runs.demo.model = 'smal'", "Did you mean small?"]),
        ({"runs": {"demo": {"evaluation": ["held"]}}}, ["runs.demo.evaluation[0] = 'held'", "heldout"]),
        ({"runs": {"models": GOOD["runs"]["demo"]}}, ["runs.models", "results/models is taken"]),
        ({"runs": {"a/b": GOOD["runs"]["demo"]}}, ["runs.a/b", "cannot be a folder's"]),
        ({"models": {"x": {"path": "/no/such/folder"}}}, ["models.x.path = '/no/such/folder'", "no such folder"]),
        ({"models": {"x": {"path": "a/b", "demo": {"data": "sums"}}}}, ["models.x", "exactly one of"]),
        ({"evaluation": {"heldout": {"questions": 51}}}, ["evaluation.heldout.questions = 51", "at most 50"]),
        ({"evaluation": {"heldout": {"samples": 4}}}, ["evaluation.heldout", "temperature above 0"]),
        ({"data": {"sums": {"warmup": 0}}}, ["data.sums.warmup = 0", "models.small.demo"]),
        ({"modles": {}}, ["modles", "Did you mean models?"]),
        (
            {"runs": {"demo": {"evaluation": []}}},
            ["runs.demo.evaluation = []: the list has 0 entries, expected at least 1."],
        ),
        ({"runs": {"demo": {"evaluation": ["heldout", 3]}}}, ["runs.demo.evaluation[1] = 3: expected a valid string"]),
        (
            {"data": {"sums": {"reward": {"clip": [0.0, 1.0, 2.0]}}}},
            ["clip = [0.0, 1.0, 2.0]: the list has 3 entries, expected at most 2."],
        ),
        ({"models": {"small": {"demo": None, "path": ""}}}, ["models.small.path = '': expected text, got none."]),
    ],
)
def test_one_fault_gives_one_message_with_key_value_and_remedy(changes, said):
    problems = problems_of(changes)
    assert len(problems) == 1, problems
    for words in said:
        assert words in problems[0]


def test_faults_are_told_all_at_once():
    problems = problems_of(
        {
            "runs": {"demo": {"model": "smal", "stepps": 1, "grpo": {"kl_type": "x"}}},
            "models": {"y": {"path": "/nowhere"}},
        }
    )
    assert len(problems) == 4


def test_exponents_without_a_point_are_numbers(tmp_path):
    # YAML 1.1, and so PyYAML and Snakemake, reads 1e-5 as text
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(GOOD).replace("steps: 4", "steps: 4\n    grpo: {learning_rate: 1e-5}"))
    assert load_config(file).runs["demo"].grpo.learning_rate == 1e-5


def test_a_key_given_twice_is_an_error(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("runs: {}\nruns: {}\n")
    with pytest.raises(SlipwayError, match="'runs' is given twice"):
        read_yaml(file)


def test_merge_keys_may_be_overridden_but_not_given_twice(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("runs:\n  a: &a {c: {<<: &x {p: 1}, p: 2}, q: 1}\nmodels: {<<: *a, q: 2}\n")
    assert read_yaml(file) == {"runs": {"a": {"c": {"p": 2}, "q": 1}}, "models": {"c": {"p": 2}, "q": 2}}
    file.write_text("runs:\n  a: &a {q: 1}\n  b: [{<<: *a, r: 1, r: 2}]\n")
    with pytest.raises(SlipwayError, match="'r' is given twice"):
        read_yaml(file)


def test_an_overlay_replaces_key_by_key_and_null_removes(tmp_path):
    base, top = tmp_path / "base.yaml", tmp_path / "top.yaml"
    base.write_text(yaml.safe_dump(GOOD))
    top.write_text(yaml.safe_dump({"runs": {"demo": None, "other": GOOD["runs"]["demo"] | {"steps": 9}}}))
    config = load_config(base, top)
    assert list(config.runs) == ["other"]
    assert config.runs["other"].steps == 9


def test_the_config_of_the_tests_on_a_gpu_is_valid():
    # they run on CUDA machines only; a mistake in it shows here
    from gpu.test_train_gpu import CONFIG

    config = overlay(read_yaml(ROOT / "config.yaml"), CONFIG)
    config["runs"]["demo"]["gpu_memory_gib"] = 80
    checked, problems = check(config)
    assert problems == []
    assert checked.runs["demo"].device == "cuda"


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(SlipwayError, match="no such config file"):
        load_config(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1")
    with pytest.raises(SlipwayError, match=r"broken\.yaml: not valid YAML"):
        load_config(broken)
    broken.write_text("- a")
    with pytest.raises(SlipwayError, match="expected a mapping"):
        load_config(broken)
    broken.write_text("runs: {demo: 3}")
    with pytest.raises(ConfigError, match=r"runs\.demo = 3: expected a mapping"):
        load_config(broken)


def test_paths_of_models(tmp_path):
    assert problems_of({"models": {"x": {"path": "owner/model"}}}) == []
    (tmp_path / "empty").mkdir()
    said = problems_of({"models": {"x": {"path": str(tmp_path / "empty")}}})
    assert len(said) == 1
    assert "no config.json" in said[0]
    assert Path(tmp_path / "empty").is_dir()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"runs": {"demo": {"steps": 10**30}}}, "runs.demo.steps = 1000"),
        ({"runs": {"demo": {"grpo": {"seed": 2**40}}}}, "runs.demo.grpo.seed = 1099511627776"),
        ({"runs": {"demo": {"grpo": {"temperature": float("inf")}}}}, "runs.demo.grpo.temperature = inf"),
        ({"runs": {"demo": {"grpo": {"temperature": float("nan")}}}}, "runs.demo.grpo.temperature = nan"),
        ({"runs": {"demo": {"gpu_memory_gib": float("inf")}}}, "runs.demo.gpu_memory_gib = inf"),
    ],
)
def test_numbers_beyond_all_reason_are_errors_and_no_dry_run_without_end(changes, said):
    problems = problems_of(changes)
    assert len(problems) == 1, problems
    assert said in problems[0]


@pytest.mark.parametrize("section", ["models", "data", "evaluation", "runs"])
@pytest.mark.parametrize("content", [["a"], "a", 3, {}])
def test_a_section_that_is_no_mapping_is_named(section, content):
    problems = [str(problem) for problem in check(copy.deepcopy(GOOD) | {section: content})[1]]
    assert any(problem.startswith(section) and "must map names to settings" in problem for problem in problems)


@pytest.mark.parametrize("where", [(), ("runs",), ("runs", "demo"), ("runs", "demo", "grpo"), ("models", "small")])
def test_keys_that_are_no_text_are_named(where):
    raw = copy.deepcopy(GOOD)
    raw["runs"]["demo"]["grpo"] = {}
    inner = raw
    for key in where:
        inner = inner[key]
    inner[5] = {}
    problems = [str(problem) for problem in check(raw)[1]]
    assert any("5" in problem.partition(":")[0] for problem in problems), problems


def test_a_config_that_is_a_folder_or_no_text_is_named(tmp_path):
    with pytest.raises(SlipwayError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)
    (tmp_path / "c.yaml").write_bytes(b"runs: \xff\xfe")
    with pytest.raises(SlipwayError, match=r"c\.yaml: not UTF-8 text"):
        read_yaml(tmp_path / "c.yaml")


TWO = {"heldout": {"data": "sums", "skip_questions": 20}, "tuning": {"data": "sums", "questions": 20}}


def evaluating(checkpoints: dict, evaluations: dict | None = None, **run: object) -> dict:
    chosen = {"steps": 100, "evaluation": ["heldout", "tuning"], "checkpoints": checkpoints}
    return {"evaluation": overlay(TWO, evaluations or {}), "runs": {"demo": chosen | run}}


def test_earlier_checkpoints_are_those_before_the_last_step():
    changes = evaluating({"evaluate_every": 40, "select_on": "tuning"})
    config, problems = check(overlay(copy.deepcopy(GOOD), changes))
    assert problems == []
    run = config.runs["demo"]
    assert run.evaluated_steps == (40, 80)
    assert run.reported_evaluations == ["heldout"]
    assert check(GOOD)[0].runs["demo"].evaluated_steps == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (evaluating({"evaluate_every": 30}), ["evaluate_every = 30", "saves every 20 steps", "save_every: 10"]),
        (
            evaluating({"evaluate_every": 100}),
            ["evaluate_every = 100", "no such step before the last", "less than 100"],
        ),
        (evaluating({"evaluate_evry": 20, "evaluate_every": 20}), ["evaluate_evry", "Did you mean evaluate_every?"]),
        (evaluating({"select_on": "tuning"}), ["checkpoints.evaluate_every", "missing"]),
        (
            evaluating({"evaluate_every": 20, "select_on": "tunig"}),
            ["select_on = 'tunig'", "heldout, tuning", "Did you mean tuning?"],
        ),
        (
            evaluating({"evaluate_every": 20, "select_on": "heldout"}),
            ["select_on = 'heldout'", "decides the verdict", "evaluation: [tuning, heldout]"],
        ),
        (
            evaluating({"evaluate_every": 20, "select_on": "heldout"}, evaluation=["heldout"]),
            ["select_on = 'heldout'", "Split the held-out questions"],
        ),
        (
            evaluating({"evaluate_every": 20, "select_on": "tuning"}, {"heldout": {"skip_questions": 5}}),
            ["select_on = 'tuning'", "15 of its questions are also those of evaluation.heldout", "skip_questions: 20."],
        ),
        (
            evaluating({"evaluate_every": 20}, evaluation=["heldout", "tuning", "heldout"]),
            ["runs.demo.evaluation[2] = 'heldout'", "named twice", "Leave one out"],
        ),
        (evaluating(20), ["runs.demo.checkpoints = 20: expected a mapping of settings, got int."]),
        ({"evaluation": {"heldout": {"skip_questions": 50}}}, ["skip_questions = 50", "less than 50"]),
        (
            {"evaluation": {"heldout": {"skip_questions": 30, "questions": 21}}},
            ["evaluation.heldout.questions = 21", "of which 30 are skipped", "at most 20"],
        ),
    ],
)
def test_one_fault_of_checkpoints_gives_one_message(changes, said):
    problems = problems_of(changes)
    assert len(problems) == 1, problems
    for words in said:
        assert words in problems[0]


@pytest.mark.parametrize(
    ("evaluations", "remedy", "followed"),
    [
        (
            {"heldout": {"skip_questions": 0, "questions": 40}},
            "Let evaluation.heldout have skip_questions: 20, questions: null.",
            {"heldout": {"skip_questions": 20, "questions": None}},
        ),
        (
            {"tuning": {"skip_questions": 10, "questions": None}},
            "Split them: evaluation.tuning with skip_questions: 0, questions: 25, evaluation.heldout with "
            "skip_questions: 25.",
            {"tuning": {"skip_questions": 0, "questions": 25}, "heldout": {"skip_questions": 25}},
        ),
    ],
)
def test_the_remedy_for_shared_questions_is_one(evaluations, remedy, followed):
    choosing = {"evaluate_every": 20, "select_on": "tuning"}
    [problem] = problems_of(evaluating(choosing, evaluations))
    assert problem.endswith(remedy)
    assert problems_of(evaluating(choosing, overlay(evaluations, followed))) == []


def test_a_single_question_cannot_be_split():
    changes = evaluating(
        {"evaluate_every": 20, "select_on": "tuning"}, {"tuning": {"questions": 1}, "heldout": {"skip_questions": 0}}
    )
    [problem] = problems_of(overlay(changes, {"data": {"sums": {"heldout": 1}}}))
    assert problem.endswith("Raise data.sums.heldout, which is 1: it cannot be split.")


def test_faults_of_checkpoints_are_told_all_at_once():
    problems = problems_of(evaluating({"evaluate_every": 30, "select_on": "heldout"}))
    assert len(problems) == 2
    problems = problems_of(evaluating({"evaluate_every": 30}, save_every="x"))
    assert len(problems) == 1, problems  # not measured by a default that the user did not give
