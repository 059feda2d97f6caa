"""verl's in-loop validation follows an evaluation, and is compared with it where the two are the same measurement."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from made_run import QUESTIONS, STEPS, make_run

from slipway.config.identity import training_identity
from slipway.config.paths import ResultPaths
from slipway.config.schema import Evaluation, Run
from slipway.config.validation import validation_settings
from slipway.launch.validation import record_validation
from slipway.manifest import read_manifest
from slipway.report.parity import Parity, check_parity
from slipway.report.reading import Evaluated, SampleRow, Step, Training, ValidationRecord
from slipway.report.settings_view import RunSettings
from slipway.report.stage import write_report
from slipway.resolve import plan

RUN = Run(model="m", data="sums", evaluation=["other", "heldout"], steps=4, validate_every=2)
SAMPLED = Evaluation(data="sums", samples=4, temperature=0.7, top_p=0.9)
EVALUATIONS = {"other": Evaluation(data="elsewhere"), "heldout": SAMPLED}
RECORD = ValidationRecord("digest", -1, 0.7, 0.9, -1, RUN.grpo.max_response_length)


# -- what verl is told -------------------------------------------------------------------------------------------------
def verl_config(results: Path, **run: object) -> dict:
    config = {
        "models": {"small": {"demo": {"data": "sums"}}},
        "data": {
            "sums": {"task": "reasoning_gym", "sources": [{"dataset": "chain_sum"}], "train": 100, "heldout": 50}
            | {"warmup": 10}
        },
        "evaluation": {"heldout": SAMPLED.model_dump()},
        "runs": {
            "demo": {"model": "small", "data": "sums", "evaluation": ["heldout"], "steps": 4, "device": "cpu"}
            | {"gpus_per_node": 1, **run}
        },
    }
    return plan(config, results).runs["demo"].verl.plain()


def test_validation_samples_as_the_evaluation_does_and_checkpoints_do_not_depend_on_it(tmp_path: Path) -> None:
    silent, validated = verl_config(tmp_path), verl_config(tmp_path, validate_every=2)
    sampling = validated["actor_rollout_ref"]["rollout"]["val_kwargs"]
    assert (sampling["temperature"], sampling["top_p"], sampling["do_sample"], sampling["n"]) == (0.7, 0.9, True, 1)
    assert silent["actor_rollout_ref"]["rollout"]["val_kwargs"]["temperature"] == 0  # verl's own, not used
    assert training_identity(validated) == training_identity(silent)


def test_a_key_of_the_users_goes_before(tmp_path: Path) -> None:
    key = "actor_rollout_ref.rollout.val_kwargs.n"
    resolved = verl_config(tmp_path, validate_every=2, verl={key: 8})
    assert resolved["actor_rollout_ref"]["rollout"]["val_kwargs"]["n"] == 8


def test_an_evaluation_of_other_questions_is_not_followed() -> None:
    assert validation_settings(RUN, {"other": EVALUATIONS["other"]}) == {}


# -- what is recorded and compared -------------------------------------------------------------------------------------
def validate(root: Path, settings: RunSettings, score: float, metric: str = "mean@1", **changes: object) -> RunSettings:
    """Let a made run have validated after its last step."""
    paths = ResultPaths(root)
    settings = replace(settings, run=settings.run.model_copy(update={"validate_every": STEPS}))
    with paths.metrics("demo").open("a") as file:
        key = f"val-core/reasoning_gym/chain_sum/reward/{metric}"
        file.write(json.dumps({"step": STEPS, "data": {key: score, "val-core/reasoning_gym/chain_sum/x": 1.0}}) + "\n")
    resolved = {
        "trainer": {"test_freq": STEPS},
        "data": {"val_files": str(paths.data("sums") / "heldout.parquet"), "max_response_length": 1024},
        "actor_rollout_ref": {"rollout": {"val_kwargs": {"temperature": 0, "top_p": 1.0, "top_k": -1}}},
    }
    resolved["data"] |= changes
    segment = paths.train("demo") / "segments/001"
    segment.mkdir(parents=True)
    record_validation(yaml.safe_load(yaml.safe_dump(resolved)), segment)
    return settings


def page_of(root: Path, settings: RunSettings) -> str:
    write_report(ResultPaths(root), settings)
    return (root / "demo/report.html").read_text()


def accuracy(root: Path) -> float:
    evaluations = read_manifest(ResultPaths(root).evaluation_result("demo", "final"), "evaluate").facts["evaluations"]
    return float(evaluations["heldout"]["accuracy"])


def test_the_page_shows_both_by_data_source(tmp_path: Path) -> None:
    settings = make_run(tmp_path)
    page = page_of(tmp_path, validate(tmp_path, settings, accuracy(tmp_path)))
    assert f'<th scope="row">reasoning_gym/chain_sum</th><td class="figure">{QUESTIONS}</td>' in page
    assert "<td>yes</td>" in page
    assert "last validation scored" not in page


def test_the_page_warns_of_what_sampling_does_not_explain(tmp_path: Path) -> None:
    settings = make_run(tmp_path)
    page = page_of(tmp_path, validate(tmp_path, settings, accuracy(tmp_path) - 0.4))
    assert "<td>no</td>" in page
    assert "reasoning_gym/chain_sum: verl&#39;s last validation scored" in page


def test_another_length_is_no_disagreement_but_not_comparable(tmp_path: Path) -> None:
    settings = make_run(tmp_path)
    page = page_of(tmp_path, validate(tmp_path, settings, accuracy(tmp_path) - 0.4, max_response_length=64))
    assert "length limit, tokens: 64 in validation, 1024 in the evaluation" in page
    assert "last validation scored" not in page


def test_without_validation_nothing_is_said(tmp_path: Path) -> None:
    assert "Validation in training" not in page_of(tmp_path, make_run(tmp_path))


def test_a_segment_that_does_not_validate_records_nothing(tmp_path: Path) -> None:
    record_validation({"trainer": {"test_freq": -1}}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def evaluated(scores: np.ndarray) -> Evaluated:
    rows = [
        SampleRow(f"q{question}", sample, "", "", 1, "eos", float(score), score > 0.5, "")
        for question, samples in enumerate(scores)
        for sample, score in enumerate(samples)
    ]
    empty = None
    return Evaluated("final", "w", {"heldout": {}}, {"heldout": rows}, empty)  # type: ignore[arg-type]


def parity(
    scores: np.ndarray,
    values: dict[str, float],
    record: ValidationRecord | None = RECORD,
    settings: Evaluation = SAMPLED,
    step: int = 4,
    sources: dict[str, str] | None = None,
) -> Parity:
    training = Training([Step(number, {}) for number in range(1, 5)], [Step(step, values)], None)
    sources = sources or {f"q{number}": "math/a/b" for number in range(len(scores))}
    found = check_parity(
        training, record, evaluated(scores), RUN, EVALUATIONS | {"heldout": settings}, "digest", sources
    )
    assert found is not None
    return found


ONES = np.ones((50, 4))


@pytest.mark.parametrize(
    ("changes", "obstacle"),
    [
        ({"step": 2}, "the last validation was of step 2, the evaluation is of step 4"),
        ({"record": None}, "the training kept no record of how it validated"),
        ({"record": replace(RECORD, questions="other")}, "the held-out questions, or their reward, have changed since"),
        ({"record": replace(RECORD, most_questions=10)}, "questions: 10 in validation, all in the evaluation"),
        ({"settings": SAMPLED.model_copy(update={"questions": 20})}, "questions: all in validation, 20 in"),
        ({"settings": SAMPLED.model_copy(update={"skip_questions": 20})}, "questions: all in validation, all after"),
        ({"record": replace(RECORD, temperature=0.0)}, "temperature: 0 in validation, 0.7 in the evaluation"),
        ({"record": replace(RECORD, top_p=1.0)}, "top_p: 1 in validation, 0.9 in the evaluation"),
        ({"record": replace(RECORD, top_k=20)}, "top_k: 20 in validation, 0 in the evaluation"),
        ({"sources": {"q0": "math/c"}}, "validation logged math/a/b, the evaluation has math/c"),
    ],
)
def test_what_makes_them_different_measurements(changes: dict, obstacle: str) -> None:
    found = parity(ONES, {"val-core/math/a/b/reward/mean@1": 0.0}, **changes)
    assert found.sources == []
    assert [text for text in found.obstacles if text.startswith(obstacle)]


def test_each_data_source_is_compared_by_itself() -> None:
    scores = np.concatenate([np.ones((40, 4)), np.zeros((40, 4))])
    sources = {f"q{number}": "math/a" if number < 40 else "math/b" for number in range(80)}
    values = {"val-core/math/a/reward/mean@1": 0.5, "val-core/math/b/reward/mean@1": 0.5}
    values |= {"val-core/math/a/reward/best@2/mean": 1.0}
    found = parity(scores, values, sources=sources)
    # their mean over both would agree exactly
    assert [(one.name, one.questions, one.evaluated, one.agrees) for one in found.sources] == [
        ("math/a", 40, 1.0, False),
        ("math/b", 40, 0.0, False),
    ]


def test_graded_scores_are_judged_by_their_own_scatter() -> None:
    # all near a half: as shares of right answers they would scatter ten times as much
    scores = 0.5 + np.random.default_rng(0).normal(0, 0.05, (200, 4))
    [source] = parity(scores, {"val-core/math/a/b/reward/mean@1": 0.54}).sources
    assert not source.agrees
    assert source.tolerance == pytest.approx(3 * 0.05 * np.sqrt(1.25 / 200), rel=0.15)


@pytest.mark.parametrize("samples", [1, 4])
def test_the_same_model_seldom_disagrees_with_itself(samples: int) -> None:
    random, trials, alarms = np.random.default_rng(1), 400, 0
    for _ in range(trials):
        chance = random.beta(0.3, 0.3, 60)
        ours = (random.random((60, samples)) < chance[:, None]).astype(float)
        theirs = float((random.random(60) < chance).mean())
        [source] = parity(ours, {"val-core/math/a/b/reward/mean@1": theirs}).sources
        alarms += not source.agrees
    assert alarms <= 0.02 * trials
