"""Evaluated checkpoints in the report: which one is chosen, what is corrected, and what is said of stopping early."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from made_run import QUESTIONS, STEPS, make_run, publish, write_evaluation

from slipway.config.paths import ResultPaths
from slipway.config.schema import Checkpoints
from slipway.report.checkpoints_view import advice_in_words, choose_step, view_checkpoints
from slipway.report.reading import Evaluated, read_evaluated
from slipway.report.settings_view import RunSettings
from slipway.report.source_archive import PROJECT
from slipway.report.stage import write_report
from slipway.statistics import compare_paired, holm, mcnemar_exact

FIRST = np.arange(QUESTIONS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def settings(root: Path) -> RunSettings:
    return make_run(root)


def evaluated(root: Path, right: dict[str, int], weights: str = "w") -> Evaluated:
    """Return a model that answers the first so many questions of each evaluation."""
    one = read_evaluated(root / "demo/eval/base.json", root / "demo/eval/base", "base")
    rows = one.samples["heldout"]
    samples = {
        name: [replace(row, correct=bool(index < count)) for index, row in enumerate(rows)]
        for name, count in right.items()
    }
    return replace(one, weights=weights, samples=samples, metrics=dict.fromkeys(right, one.metrics["heldout"]))


def models(root: Path, tuning: dict[int, int], heldout: dict[int, int]) -> dict[int, Evaluated]:
    return {step: evaluated(root, {"heldout": heldout[step], "tuning": tuning[step]}, str(step)) for step in tuning}


def test_the_best_on_the_selecting_evaluation_is_chosen_and_of_equals_the_earliest(root, settings):
    several = models(root, {10: 30, 20: 40, 30: 40, 40: 35}, {10: 60, 20: 20, 30: 30, 40: 50})
    assert choose_step(several, "tuning") == 20
    assert choose_step(several, None) == 40


def test_p_is_corrected_for_all_comparisons_but_those_of_the_evaluation_that_selects(root, settings):
    base = evaluated(root, {"heldout": 10, "tuning": 10})
    # above those of heldout: Holm multiplies the lower p by the number of all
    several = models(root, {10: 12, 20: 11}, {10: 17, 20: 15})
    raw = [mcnemar_exact(FIRST < 10, count > FIRST) for count in (17, 15)]
    chosen = view_checkpoints(base, several, ["heldout", "tuning"], "tuning")
    heldout, tuning = chosen.tables
    assert [row.corrected_p for row in heldout.rows] == pytest.approx(holm(raw))
    assert [row.corrected_p for row in tuning.rows] == [None, None]
    assert chosen.comparisons == 2
    last = view_checkpoints(base, several, ["heldout", "tuning"], None)
    assert last.comparisons == 4
    more = raw + [mcnemar_exact(FIRST < 10, count > FIRST) for count in (12, 11)]
    assert [row.corrected_p for table in last.tables for row in table.rows] == pytest.approx(holm(more))


def test_questions_that_the_selecting_evaluation_shares_with_another_are_counted(root, settings):
    base = evaluated(root, {"heldout": 10, "tuning": 10})
    several = models(root, {10: 30, 20: 40}, {10: 17, 20: 15})
    assert view_checkpoints(base, several, ["heldout", "tuning"], "tuning").shared_questions == {"heldout": QUESTIONS}
    assert view_checkpoints(base, several, ["heldout", "tuning"], None).shared_questions == {}


@pytest.mark.parametrize(
    ("right", "step"),
    [
        # 5 and 6 questions won without a loss: p is 0.06 and 0.03
        ({10: 20, 20: 30, 30: 35, 40: 30}, 20),
        ({10: 20, 20: 30, 30: 33, 40: 36}, 30),
        ({10: 20, 20: 30, 30: 40, 40: 50}, 40),
        ({10: 30, 20: 20, 30: 20, 40: 20}, 10),
    ],
)
def test_advice_is_the_earliest_step_that_no_later_one_beats(root, settings, right, step):
    base = evaluated(root, {"heldout": 10, "tuning": 10})
    advice = view_checkpoints(base, models(root, right, right), ["heldout", "tuning"], "tuning").advice
    assert (advice.step, advice.last, advice.evaluation) == (step, 40, "tuning")
    words = advice_in_words(advice)
    if step == 40:
        assert advice.detectable is None
        assert "nothing speaks for stopping before step 40" in words
    else:
        assert f"{step} of 40 steps may have been enough" in words
        assert f"a true gain of {100 * advice.detectable:.1f} points or more" in words
        assert "no proof" in words


def test_the_gain_that_would_have_been_found_is_that_of_the_least_sensitive_comparison(root, settings):
    right = {10: 30, 20: 30, 30: 25, 40: 29}
    advice = view_checkpoints(
        evaluated(root, {"heldout": 10}), {n: evaluated(root, {"heldout": right[n]}) for n in right}, ["heldout"], None
    ).advice
    by_step = [compare_paired((FIRST < 30)[:, None], (right[n] > FIRST)[:, None]).detectable for n in (20, 30, 40)]
    assert (advice.step, advice.later) == (10, [20, 30, 40])
    assert by_step[1] == max(by_step) > min(by_step)
    assert advice.detectable == by_step[1]


def with_steps(root: Path, settings: RunSettings, select: bool) -> RunSettings:
    """Add models of steps 20 and 40 of 40, on the questions of the run and on others, of which 20 is the best."""
    paths = ResultPaths(root)
    other = settings.evaluations["heldout"].model_copy(update={"skip_questions": 1})
    for which, heldout, tuning in (("base", 20, 20), ("step-20", 45, 60), ("final", 40, 40)):
        write_evaluation(paths, "demo", which, heldout > FIRST, weights=which[-1] * 64)
        result = json.loads(paths.evaluation_result("demo", which).read_text())
        text = (paths.evaluation("demo", which) / "heldout.jsonl").read_text()
        write_evaluation(paths, "demo", which, tuning > FIRST, weights=which[-1] * 64)
        again = json.loads(paths.evaluation_result("demo", which).read_text())
        tuned = (paths.evaluation("demo", which) / "heldout.jsonl").read_text()
        facts = result["facts"]
        facts["evaluations"]["tuning"] = again["facts"]["evaluations"]["heldout"]
        publish(
            "evaluate",
            paths.evaluation("demo", which),
            {"heldout.jsonl": text, "tuning.jsonl": tuned.replace('"question_id": "0', '"question_id": "1')},
            facts,
            to=paths.evaluation_result("demo", which),
        )
    publish("export_hf", paths.trained_model("demo", "step-20"), {"config.json": "{}"})
    checkpoints = Checkpoints(evaluate_every=20, select_on="tuning" if select else None)
    run = settings.run.model_copy(update={"evaluation": ["heldout", "tuning"], "checkpoints": checkpoints})
    return replace(settings, run=run, evaluations={"heldout": settings.evaluations["heldout"], "tuning": other})


def report(root: Path, settings: RunSettings) -> tuple[str, dict[str, Any]]:
    write_report(ResultPaths(root), settings)
    folder = root / "demo"
    return (folder / "report.html").read_text(), json.loads((folder / "metrics.json").read_text())


def test_the_verdict_is_about_the_selected_step_on_the_other_evaluations(root, settings):
    page, metrics = report(root, with_steps(root, settings, select=True))
    assert metrics["checkpoints"]["step"] == 20
    assert metrics["final_accuracy"] == 45 / QUESTIONS
    assert list(metrics["evaluations"]) == ["heldout"]
    assert f"step 20 of {STEPS}, selected on tuning" in page
    assert "no question in common with." in page
    for name in ("summary.md", "README.md"):
        assert "selected on tuning" in (root / "demo" / name).read_text()
    assert "the model in `model-step-20`" in (root / "demo/README.md").read_text()
    crate = (root / "demo/ro-crate-metadata.json").read_text()
    assert '"eval/step-20.json"' in crate
    assert "model-step-20/manifest.json" in crate


def test_without_a_selection_the_verdict_is_about_the_last_step_and_says_so(root, settings):
    page, metrics = report(root, with_steps(root, settings, select=False))
    assert metrics["checkpoints"]["step"] == STEPS
    assert metrics["final_accuracy"] == 40 / QUESTIONS
    assert list(metrics["evaluations"]) == ["heldout", "tuning"]
    assert f"The verdict is about the last step, {STEPS}" in page
    assert "selected on" not in (root / "demo/summary.md").read_text()


@pytest.mark.parametrize("select", [True, False])
def test_figures_are_as_their_schema_says(root, settings, select):
    _, metrics = report(root, with_steps(root, settings, select))
    schema = json.loads((PROJECT / "workflow/schemas/metrics.schema.json").read_text())
    jsonschema.validate(metrics, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(metrics | {"checkpoints": metrics["checkpoints"] | {"surplus": 1}}, schema)
    shown = [row["accuracy"] for row in metrics["checkpoints"]["evaluations"]["tuning"]]
    assert shown == [60 / QUESTIONS, 40 / QUESTIONS]
