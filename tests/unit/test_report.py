"""The report's files: right figures, offline, and an error instead of an empty page."""

import csv
import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from huggingface_hub import ModelCard
from made_run import QUESTIONS, STEPS, make_run, publish, write_evaluation, write_ledger
from scipy import stats

from slipway.config.load import load_config
from slipway.config.paths import ResultPaths
from slipway.config.schema import Model
from slipway.errors import SlipwayError
from slipway.launch.ledger import STATES as LEDGER_STATES
from slipway.report import charts
from slipway.report.comparison import compare_all
from slipway.report.curves import OVERLAID, components_of
from slipway.report.logs import last_errors
from slipway.report.memory_view import GROUPS, compare_memory
from slipway.report.model_card import model_card
from slipway.report.reading import Evaluated, Step, Training, read_evaluated, read_steps, without_false_cut_offs
from slipway.report.runs_table import settings_that_differ, write_comparison
from slipway.report.settings_view import RunSettings, comparable
from slipway.report.source_archive import PROJECT
from slipway.report.stage import write_partial_report, write_report
from slipway.report.timeline import STATES, draw_timeline


@dataclass(frozen=True)
class Finished:
    """A run that is reported."""

    root: Path
    page: str
    metrics: dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunSettings]:
    root = tmp_path_factory.mktemp("made") / "results"
    return root, make_run(root)


@pytest.fixture(scope="module")
def finished(made: tuple[Path, RunSettings], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """For tests that read; those that change something take a run of their own."""
    root = shutil.copytree(made[0], tmp_path_factory.mktemp("finished") / "results")
    return Finished(root, *report(root, made[1]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def settings(root: Path, made: tuple[Path, RunSettings]) -> RunSettings:
    shutil.copytree(made[0], root)
    return made[1]


def report(root: Path, settings: RunSettings) -> tuple[str, dict[str, Any]]:
    write_report(ResultPaths(root), settings)
    folder = root / settings.name
    return (folder / "report.html").read_text(), json.loads((folder / "metrics.json").read_text())


def samples(root: Path, which: str) -> list[dict[str, Any]]:
    path = root / "demo/eval" / which / "heldout.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_metrics_equal_those_counted_from_the_samples(finished: Finished) -> None:
    page, metrics = finished.page, finished.metrics
    base = [sample["correct"] for sample in samples(finished.root, "base")]
    final = [sample["correct"] for sample in samples(finished.root, "final")]
    gained = sum(now and not was for was, now in zip(base, final, strict=True))
    lost = sum(was and not now for was, now in zip(base, final, strict=True))
    assert metrics["questions"] == QUESTIONS
    assert metrics["base_accuracy"] == sum(base) / QUESTIONS
    assert metrics["final_accuracy"] == sum(final) / QUESTIONS
    assert metrics["difference"] == pytest.approx((gained - lost) / QUESTIONS)
    assert metrics["mcnemar_p"] == pytest.approx(stats.binomtest(gained, gained + lost).pvalue)
    low, high = metrics["difference_ci95"]
    # the normal approximation, from the same counts
    error = np.sqrt((gained + lost) / QUESTIONS - metrics["difference"] ** 2) / np.sqrt(QUESTIONS)
    assert (low, high) == pytest.approx(
        (metrics["difference"] - 1.96 * error, metrics["difference"] + 1.96 * error), abs=0.03
    )
    assert metrics["verdict"] == "better"
    assert metrics["evaluation"] == "heldout"
    for text in (f"{100 * sum(base) / QUESTIONS:.1f} %", f"{100 * sum(final) / QUESTIONS:.1f} %"):
        assert text in page


def test_metrics_are_as_their_schema_says(finished: Finished) -> None:
    metrics = finished.metrics
    schema = json.loads((PROJECT / "workflow/schemas/metrics.schema.json").read_text())
    jsonschema.validate(metrics, schema)
    for damage in ({"surplus": 1}, {"cpu_hours": None}, {"verdict": "good"}, {"evaluations": {"heldout": {}}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(metrics | damage, schema)


def test_figures_by_group_are_on_the_page_and_in_the_metrics(root: Path, settings: RunSettings) -> None:
    def group(accuracy: float, tokens: float) -> dict:
        rates = {"answered_rate": 1.0, "tagged_rate": 0.75, "response_tokens_mean": tokens, "stopped_by_length": 0.125}
        return {"questions": 40, "accuracy": accuracy, "accuracy_ci95": [0.1, 0.9]} | rates

    for which, accuracy in (("base", 0.25), ("final", 0.5)):
        result = ResultPaths(root).evaluation_result("demo", which)
        content = json.loads(result.read_text())
        content["facts"]["evaluations"]["heldout"]["by_group"] = {"difficulty": {"hard": group(accuracy, 7 + accuracy)}}
        result.write_text(json.dumps(content))
    page, metrics = report(root, settings)
    assert "By difficulty, base → trained" in page
    cells = ("40", "25.0 % → 50.0 %", "7.25 → 7.5", "12.5 % → 12.5 %", "75.0 % → 75.0 %")
    assert all(cell in page for cell in cells)
    hard = metrics["by_group"]["difficulty"]["hard"]
    assert (hard["questions"], hard["base_accuracy"], hard["final_response_tokens_mean"]) == (40, 0.25, 7.5)
    jsonschema.validate(metrics, json.loads((PROJECT / "workflow/schemas/metrics.schema.json").read_text()))
    del content["facts"]["evaluations"]["heldout"]["by_group"]["difficulty"]["hard"]["tagged_rate"]
    result.write_text(json.dumps(content))
    with pytest.raises(SlipwayError, match="earlier version wrote its figures by group"):
        report(root, settings)


def test_cost_is_the_time_of_all_steps(finished: Finished) -> None:
    metrics = finished.metrics
    lines = ResultPaths(finished.root).metrics("demo").read_text().splitlines()
    seconds = sum(json.loads(line)["data"]["timing_s/step"] for line in lines)
    assert metrics["cpu_hours"] == pytest.approx(seconds / 3600, abs=1e-4)
    assert metrics["steps"] == STEPS
    assert "gpu_hours" not in metrics


def test_no_gain_is_not_called_better(root: Path) -> None:
    _, metrics = report(root, make_run(root, better_by=0.0))
    assert metrics["verdict"] == "not shown to be better"
    _, metrics = report(root, make_run(root, better_by=-0.3))
    assert metrics["verdict"] == "worse"


def test_further_evaluations_are_corrected_for_their_number(root: Path) -> None:
    make_run(root)
    names = ["first", "second", "third", "fourth", "fifth"]

    def evaluated(which: str, correct: np.ndarray) -> Evaluated:
        one = read_evaluated(root / f"demo/eval/{which}.json", root / "demo/eval" / which, which)
        rows = [replace(row, correct=bool(right)) for row, right in zip(one.samples["heldout"], correct, strict=True)]
        metrics = one.metrics["heldout"]
        return replace(one, samples=dict.fromkeys(names, rows), metrics=dict.fromkeys(names, metrics))

    # ten questions won and two lost: p is 0.039 alone, and 0.15 among four
    questions = np.arange(QUESTIONS)
    base, final = evaluated("base", questions >= 62), evaluated("final", questions < 10)
    first, *further = compare_all(base, final, names)
    assert (first.verdict, first.corrected_p) == ("better", None)
    assert [one.corrected_p for one in further] == pytest.approx([4 * stats.binomtest(10, 12).pvalue] * 4)
    assert {one.verdict for one in further} == {"not shown to be better"}
    assert [one.verdict for one in compare_all(base, final, names[:2])] == ["better", "better"]


def test_the_page_loads_nothing(finished: Finished) -> None:
    page = finished.page
    loads = re.findall(r"""(?:src|href|action|poster|data)\s*=\s*["']([^"']*)""", page)
    loads += re.findall(r"""url\(\s*["']?([^)"']*)""", page) + re.findall(r"@import[^;]*", page)
    assert [load for load in loads if not load.startswith(("#", "data:,"))] == []
    assert page.count("<script") == 1
    assert not re.search(r"<script[^>]*src|fetch\(|XMLHttpRequest|import\(", page)


def test_every_anchor_and_id_is_there_once(finished: Finished) -> None:
    page = finished.page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    used = re.findall(r'href="#([^"]+)"', page) + re.findall(r"url\(#([^)]+)\)", page)
    assert set(used) <= set(ids)


def test_the_page_shows_curves_samples_and_provenance(finished: Finished) -> None:
    page = finished.page
    for title in (
        "Reward",
        "KL to the reference",
        "Entropy",
        "Response length",
        "Gradient norm",
        "Time of a step",
    ):
        assert f"<figcaption>{title}<" in page
    articles = re.findall(r'<article class="sample"[^>]*>', page)
    assert len(articles) == QUESTIONS
    assert sum(" hidden" in article for article in articles) == QUESTIONS - 20
    assert page.index("newly right") < page.index("wrong both times")
    for stage in ("prepare_data", "make_demo_model", "convert_megatron", "train", "export_hf", "evaluate"):
        assert f'<th scope="row">{stage}</th>' in page
    assert "b" * 64 in page
    assert "f" * 64 in page


def test_what_models_say_is_text_not_markup(root: Path, settings: RunSettings) -> None:
    path = root / "demo/eval/final/heldout.jsonl"
    write_evaluation(ResultPaths(root), "demo", "final", np.ones(QUESTIONS, dtype=bool))
    hostile = [sample | {"response": "<script>alert(1)</script>"} for sample in samples(root, "final")]
    republish(root, "final", "".join(json.dumps(sample) + "\n" for sample in hostile))
    page, _ = report(root, settings)
    assert path.is_file()
    assert page.count("<script") == 1
    assert not re.search(r"<script[^>]*src|fetch\(|XMLHttpRequest|import\(", page)
    assert "&lt;script&gt;alert(1)" in page


def republish(root: Path, which: str, content: str) -> None:
    paths = ResultPaths(root)
    facts = json.loads(paths.evaluation_result("demo", which).read_text())["facts"]
    publish(
        "evaluate",
        paths.evaluation("demo", which),
        {"heldout.jsonl": content},
        facts,
        to=paths.evaluation_result("demo", which),
    )


@pytest.mark.parametrize(
    "path",
    [
        "demo/train/manifest.json",
        "demo/train/metrics.jsonl",
        "demo/train/provenance.json",
        "demo/model/manifest.json",
        "demo/eval/base.json",
        "demo/eval/final.json",
        "demo/eval/final/heldout.jsonl",
        "demo/verl.yaml",
        "data/sums/manifest.json",
        "models/small/hf/manifest.json",
        "models/small/megatron/manifest.json",
    ],
)
def test_a_missing_file_is_an_error_that_names_it(root: Path, settings: RunSettings, path: str) -> None:
    (root / path).unlink()
    with pytest.raises(SlipwayError, match=re.escape(path)):
        report(root, settings)
    assert not (root / "demo/report.html").exists()
    assert not (root / "demo/metrics.json").exists()
    write_partial_report(ResultPaths(root), settings)
    assert path in (root / "demo/report.partial.html").read_text()


def test_the_same_weights_twice_are_an_error(root: Path, settings: RunSettings) -> None:
    write_evaluation(ResultPaths(root), "demo", "final", np.ones(QUESTIONS, dtype=bool), weights="b" * 64)
    with pytest.raises(SlipwayError, match="same weights were evaluated twice"):
        report(root, settings)


def test_base_in_the_place_of_final_is_an_error(root: Path, settings: RunSettings) -> None:
    evaluation = root / "demo/eval"
    (evaluation / "final.json").write_text((evaluation / "base.json").read_text())
    with pytest.raises(SlipwayError, match=r"final\.json: evaluates 'base'"):
        report(root, settings)


def test_a_sample_too_few_is_an_error(root: Path, settings: RunSettings) -> None:
    lines = (root / "demo/eval/base/heldout.jsonl").read_text().splitlines(keepends=True)
    republish(root, "base", "".join(lines[:-1]))
    with pytest.raises(SlipwayError, match="holds 63 samples"):
        report(root, settings)


def test_an_altered_sample_is_an_error(root: Path, settings: RunSettings) -> None:
    path = root / "demo/eval/base/heldout.jsonl"
    path.write_text(path.read_text().replace('"correct": false', '"correct": true ', 1))
    with pytest.raises(SlipwayError, match="differs"):
        report(root, settings)


def test_other_questions_are_an_error(root: Path, settings: RunSettings) -> None:
    content = (root / "demo/eval/final/heldout.jsonl").read_text()
    republish(root, "final", content.replace('"question_id": "0000000000000007"', '"question_id": "seven"'))
    with pytest.raises(SlipwayError, match="asked different questions"):
        report(root, settings)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"version": 2}, "base was evaluated by version 1, final by version 2; score both again by .*--rescore"),
        ({"version": 1, "engine": "vllm"}, "by engine None, final by engine vllm; evaluate both where the same"),
    ],
)
def test_another_engine_and_another_version_of_scoring_are_errors(
    root: Path, settings: RunSettings, inputs: dict[str, Any], message: str
) -> None:
    path = root / "demo/eval/final.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"inputs": inputs}))
    with pytest.raises(SlipwayError, match=message):
        report(root, settings)


def test_another_setting_of_the_evaluation_is_an_error(root: Path, settings: RunSettings) -> None:
    path = root / "demo/eval/final.json"
    path.write_text(path.read_text().replace('"temperature": 0.0', '"temperature": 0.5'))
    with pytest.raises(SlipwayError, match="heldout: base and final were evaluated with different settings"):
        report(root, settings)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no training step"),
        ('{"step": 0, "data": {"val-core/x": 1}}\n', "holds no training step"),
        ('{"step": 1, "data": {}}\n{"step": 4, "data": {}}\n', "lacks step 2, 3"),
        ('{"step": 1, "data": {}}\n{"step": 2, "da', "line 2: not a metrics line"),
        ('{"step": 1, "data": 5}\n', "line 1: not a metrics line"),
        ('{"step": 1, "data": {}}\n', "ends at step 1, but the manifest of train says 40"),
    ],
)
def test_broken_metrics_are_an_error(root: Path, settings: RunSettings, content: str, message: str) -> None:
    ResultPaths(root).metrics("demo").write_text(content)
    with pytest.raises(SlipwayError, match=message):
        report(root, settings)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"{}"])
def test_damaged_figures_of_a_run_are_an_error_that_names_them(
    root: Path, settings: RunSettings, content: bytes
) -> None:
    report(root, settings)
    (root / "demo/metrics.json").write_bytes(content)
    with pytest.raises(SlipwayError, match=r"demo/metrics\.json: .*make it again"):
        write_comparison(ResultPaths(root), {"demo": {}})


def test_a_step_that_was_repeated_after_a_resume_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [(1, 0.1), (2, 0.2), (3, 0.9), (3, 0.3), (4, None)]
    path.write_text("".join(json.dumps({"step": s, "data": {"critic/score/mean": v}}) + "\n" for s, v in rows))
    steps = read_steps(path).steps
    assert [step.values.get("critic/score/mean") for step in steps] == [0.1, 0.2, 0.3, None]


def test_partial_report_of_an_empty_run_names_what_is_missing(root: Path, settings: RunSettings) -> None:
    other = RunSettings("broken", settings.run, settings.model, settings.data, settings.evaluations)
    logs = root / "broken/logs"
    logs.mkdir(parents=True)
    (logs / "train.log").write_text("all well\nRuntimeError: gloo timed out <b>\n" + "Traceback\n")
    write_partial_report(ResultPaths(root), other)
    page = (root / "broken/report.partial.html").read_text()
    assert "broken/train/manifest.json: missing" in page
    assert "RuntimeError: gloo timed out &lt;b&gt;" in page
    assert "all well" not in page
    assert "Unfinished" in page


def test_what_every_healthy_log_says_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "main_ppo.log").write_text(
        '\x1b[36m(TaskRunnerV1 pid=24264)\x1b[0m UserWarning: veomni is not there: ModuleNotFoundError("veomni")\n'
        "\x1b[36m(TaskRunnerV1 pid=24264)\x1b[0m  'truncation': 'error',\n 'nccl_timeout': 600,\n"
        "\x1b[36m(WorkerDict pid=7)\x1b[0m RuntimeError: connection refused\n"
    )
    [excerpt] = last_errors(tmp_path)
    assert excerpt.lines == ["(WorkerDict pid=7) RuntimeError: connection refused"]


@pytest.mark.parametrize("name", ["demo", "mine"])
def test_the_command_of_the_page_repeats_the_run(tmp_path: Path, name: str) -> None:
    settings = make_run(tmp_path / "results", name)
    page, _ = report(tmp_path / "results", settings)
    options = re.search(r"snakemake --profile profiles/local --configfile (\S+) -- ([^\s<]+)", page)
    assert options is not None
    assert options[2] == f"results/{name}/report.html"
    shipped = Path(__file__).resolve().parents[2] / "config.yaml"
    again = load_config(shipped, tmp_path / options[1])
    assert again.runs[name] == settings.run
    assert again.models[settings.run.model] == settings.model
    assert again.evaluation["heldout"] == settings.evaluations["heldout"]


def test_partial_report_shows_the_steps_that_were_trained(root: Path, settings: RunSettings) -> None:
    (root / "demo/train/manifest.json").unlink()
    lines = ResultPaths(root).metrics("demo").read_text().splitlines(keepends=True)
    ResultPaths(root).metrics("demo").write_text("".join(lines[:12]))
    write_partial_report(ResultPaths(root), settings)
    page = (root / "demo/report.partial.html").read_text()
    assert "12 of 40 steps" in page
    assert "<figcaption>Reward<" in page


def test_rebuilding_gives_the_same_bytes(root: Path, settings: RunSettings) -> None:
    names = (
        "report.html",
        "metrics.json",
        "summary.md",
        "README.md",
        "config.yaml",
        "source.tar.gz",
        "ro-crate-metadata.json",
    )
    pages = [root / "compare.html", *(root / "demo" / name for name in names)]

    def build() -> list[bytes]:
        report(root, settings)
        write_comparison(ResultPaths(root), {"demo": comparable(settings)})
        return [page.read_bytes() for page in pages]

    assert build() == build()


def test_summaries_say_the_same_as_the_metrics(finished: Finished) -> None:
    metrics = finished.metrics
    base, final = f"{100 * metrics['base_accuracy']:.1f} %", f"{100 * metrics['final_accuracy']:.1f} %"
    for name in ("summary.md", "README.md"):
        text = (finished.root / "demo" / name).read_text()
        assert f"| {base} | {final} |" in text


def test_the_model_card_is_metadata_that_the_hub_reads(finished: Finished) -> None:
    metrics = finished.metrics
    data = ModelCard.load(finished.root / "demo/README.md").data
    [result] = data.eval_results or []
    assert (result.metric_type, result.dataset_type, result.dataset_name) == ("accuracy", "reasoning_gym", "heldout")
    assert result.metric_value == pytest.approx(metrics["final_accuracy"], abs=1e-6)
    assert result.metric_args["confidence_interval_95"] == pytest.approx(metrics["final_accuracy_ci95"], abs=1e-6)
    assert result.metric_args["questions"] == QUESTIONS
    assert data.model_name == "demo"
    assert data.base_model is None  # the demo's is on no hub


@pytest.mark.parametrize(
    ("path", "base_model"), [("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"), ("/models/mine", None), ("models/mine", None)]
)
def test_only_a_hubs_name_is_a_base_model(
    root: Path, settings: RunSettings, path: str, base_model: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    (root / "models/mine").mkdir(parents=True)
    _, metrics = report(root, settings)
    card = ModelCard(model_card(metrics, replace(settings, model=Model(path=path))))
    assert card.data.base_model == base_model
    assert f"GRPO-trained from {path} on" in card.text


def test_step_time_is_whole_and_in_order() -> None:
    values = {"timing_s/gen": 2.0, "timing_s/update_actor": 1.0, "timing_s/step": 3.5}
    training = Training([Step(number, values) for number in range(1, 5)], [], None)
    [chart] = charts.draw_step_time(training)
    assert "cut off" not in chart.hint
    # ids of several charts share one page
    assert {name.rpartition("-")[0] for name in re.findall(r'id="([^"]+)"', chart.svg)} == {"step-time"}
    assert chart.svg.index("generate") < chart.svg.index("update") < chart.svg.index("other")
    slow = Training([Step(1, values | {"timing_s/step": 30.0}), *training.steps[1:]], [], None)
    assert "first step took 30 s" in charts.draw_step_time(slow)[0].hint


def test_only_settings_that_differ_are_compared() -> None:
    runs = {
        "a": {"steps": 40, "grpo.learning_rate": 1e-4},
        "b": {"steps": 40, "grpo.learning_rate": 3e-4, "x": 1},
    }
    assert settings_that_differ(runs) == ["grpo.learning_rate", "x"]


def test_comparison_of_runs(root: Path, settings: RunSettings) -> None:
    other = make_run(root, "slow", seed=1, better_by=0.02)
    other = replace(other, data={"sums": other.data["sums"].model_copy(update={"train": 256})})
    runs = {item.name: comparable(item) for item in (settings, other)}
    report(root, settings)
    with pytest.raises(SlipwayError, match=r"slow/metrics\.json: missing"):
        write_comparison(ResultPaths(root), runs)
    write_report(ResultPaths(root), other)
    write_comparison(ResultPaths(root), runs)
    page = (root / "compare.html").read_text()
    for name in ("demo", "slow"):
        metrics = json.loads((root / name / "metrics.json").read_text())
        assert f"{100 * metrics['final_accuracy']:.1f} %" in page
        assert f'href="{name}/report.html"' in page
    # 0.0001 and 0.6 or so alone
    worst = max(json.loads((root / name / "metrics.json").read_text())["p"] for name in ("demo", "slow"))
    assert f'data-label="p, corrected" class="figure">{worst:.4f}</td>' in page
    assert "p is corrected for 2 runs" in page
    for title in ("Difference", "Accuracy", "Reward", "Response length", "KL to the reference", "Entropy"):
        assert f"<figcaption>{title}<" in page
    # both name the same data, which was made from other settings
    assert re.findall(r'<th scope="row">([^<]+)</th><td>512</td><td>256</td>', page) == [
        "training data.train",
        "evaluations.heldout.data settings.train",
    ]
    assert "All evaluations" not in page  # there is one
    assert 'data-label="Verdict"' in page
    write_comparison(ResultPaths(root), dict.fromkeys(runs, runs["demo"]))
    assert "the runs have the same settings" in (root / "compare.html").read_text()


def test_a_comparison_shows_every_evaluation(root: Path, settings: RunSettings) -> None:
    _, metrics = report(root, settings)
    further = metrics["evaluations"]["heldout"] | {"final_accuracy": 0.4321, "verdict": "worse"}
    both = metrics | {"evaluations": metrics["evaluations"] | {"harder": further}}
    (root / "demo/metrics.json").write_text(json.dumps(both))
    write_comparison(ResultPaths(root), {"demo": {}})
    page = (root / "compare.html").read_text()
    assert "1 of 1 run better than its base" in page
    row = page[page.index(">harder<") :]
    assert "43.2 %" in row
    assert "worse" in row


def test_a_metric_that_no_run_logged_is_not_overlaid() -> None:
    [curve] = [curve for curve in OVERLAID if curve.key == "actor/kl_loss"]
    steps = [Step(number, {"critic/score/mean": 0.1 * number}) for number in (1, 2)]
    assert charts.draw_overlaid({"a": steps}, curve) is None
    logged = [Step(number, {"actor/kl_loss": 0.1 * number}) for number in (1, 2)]
    assert charts.draw_overlaid({"a": steps, "b": logged}, curve) is not None


def test_a_response_is_cut_off_only_at_the_configured_limit():
    """verl takes the longest response of the batch for the limit."""
    rows = [(7.0, 0.33), (16.0, 0.25)]
    steps = [
        Step(number, {"response_length/max": longest, "response_length/clip_ratio": share})
        for number, (longest, share) in enumerate(rows, start=1)
    ]
    corrected = without_false_cut_offs(Training(steps, [], None), max_response_length=16)
    assert [step.values["response_length/clip_ratio"] for step in corrected.steps] == [0.0, 0.25]


def test_the_ledger_is_shown_when_there_is_one(root: Path, settings: RunSettings) -> None:
    (root / settings.name / "ledger.json").unlink()
    page, metrics = report(root, settings)
    assert "Timeline" not in page
    assert "cpu_hours_held" not in metrics
    totals = write_ledger(ResultPaths(root), settings.name)
    page, metrics = report(root, settings)
    assert "preempted" in page
    assert "3 min 20 s" in page
    assert metrics["cpu_hours_held"] == pytest.approx(sum(totals.values()) - totals["queued_hours"], abs=1e-4)


def test_the_timeline_knows_every_state_of_the_ledger() -> None:
    assert tuple(STATES) == LEDGER_STATES


def test_the_timeline_has_a_bar_for_every_stretch_of_time(root: Path, settings: RunSettings) -> None:
    write_ledger(ResultPaths(root), settings.name)
    ledger = json.loads((root / settings.name / "ledger.json").read_text())
    chart = draw_timeline(ledger)
    assert chart is not None
    spans = sum(len(segment["spans"]) for segment in ledger["segments"])
    legend = len({state for segment in ledger["segments"] for state, _ in segment["spans"]})
    assert sum(chart.svg.count(f'fill="{colour}"') for colour in STATES.values()) == spans + legend
    assert "1: steps 1–26" in chart.svg
    assert "minutes since the first submission" in chart.svg
    # what the first segment had not saved is what the second trained again
    first, second = ledger["segments"]
    assert second["first_step"] == first["kept_step"] + 1
    # a ledger of an earlier version has no order
    for segment in ledger["segments"]:
        del segment["spans"]
    assert draw_timeline(ledger) is None


def test_the_forecast_of_memory_stands_beside_what_was_measured(root: Path, settings: RunSettings) -> None:
    assert "Memory: forecast and measured" not in report(root, settings)[0]  # the CPU has no forecast
    terms = {"context of the trainer": 2, "weights": 10, "activations and logits": 40, "rollout engine": 20}
    forecast = {
        "gpu": 80 * 2**30,
        "band": 0.15,
        "phases": [
            {
                "name": "update",
                "terms": {term: size * 2**30 for term, size in terms.items()},
                "trainer_allocated": 50 * 2**30,
                "trainer_reserved": 55 * 2**30,
            }
        ],
    }
    logged = [
        Step(1, {"actor/perf/max_memory_allocated_gb": 40.0}),
        Step(2, {"actor/perf/max_memory_allocated_gb": 48.0}),
    ]
    view = compare_memory(forecast, Training(logged, [], None))
    allocated, reserved = view.rows
    assert (allocated.forecast, allocated.measured, allocated.is_within) == (50.0, 48.0, True)
    assert allocated.off == pytest.approx(50 / 48 - 1)
    assert (reserved.forecast, reserved.measured, reserved.off) == (55.0, None, None)
    assert not compare_memory(forecast, Training(logged[:1], [], None)).rows[0].is_within
    colours = [colour for name, colour, _ in GROUPS if name != "optimizer"]
    assert all(colour in view.chart.svg for colour in colours)
    publish("preflight", root / "demo/preflight", {}, {"memory": forecast}, to=root / "demo/preflight.json")
    page, _ = report(root, settings)
    assert "Memory: forecast and measured" in page
    assert "not logged" in page


def test_what_never_changed_is_said_instead_of_drawn(root: Path, settings: RunSettings) -> None:
    path = ResultPaths(root).metrics("demo")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["data"]["actor/pg_clipfrac"] = 0.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page, _ = report(root, settings)
    assert "<figcaption>Clipped updates<" not in page
    assert "<dt>Clipped updates</dt><dd>0 % (share of tokens)</dd>" in page


def test_the_figures_behind_the_curves_can_be_read(finished: Finished) -> None:
    page = finished.page
    text = re.search(r'<pre class="log" tabindex="0">(.*?)</pre>', page, re.DOTALL)
    assert text is not None
    rows = list(csv.DictReader(text[1].splitlines()))
    logged = [json.loads(line) for line in ResultPaths(finished.root).metrics("demo").read_text().splitlines()]
    assert len(rows) == STEPS
    for key in ("critic/score/mean", "actor/entropy", "timing_s/gen", "response_length/max"):
        values = [float(row[key]) for row in rows]
        assert values == pytest.approx([row["data"][key] for row in logged], rel=1e-4)


def test_every_component_of_the_reward_has_a_curve(finished: Finished) -> None:
    page = finished.page
    titles = ("Right answers", "Style", "Tagged", "Syntax")
    drawn = [title for title in titles if f"<figcaption>{title}<" in page]
    assert drawn == ["Right answers", "Style", "Tagged"]
    assert "Mean correctness" in page


def test_a_component_is_drawn_once() -> None:
    keys = [curve.key for curve in components_of(["reward/score", "reward/format", "reward/tagged", "critic/x"])]
    assert keys == ["reward/format"]
