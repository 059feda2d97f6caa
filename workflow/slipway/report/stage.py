"""Rule `report`: from the files of a run to the page and what lies beside it."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from slipway.config.paths import BASE, FINAL, ResultPaths, name_of_step
from slipway.config.validation import evaluation_of_validation
from slipway.errors import SlipwayError
from slipway.manifest import FolderLock, read_manifest, write_json, write_text
from slipway.report import checkpoints_view, crate, provenance_view, summaries
from slipway.report.comparison import compare_all
from slipway.report.logs import last_errors
from slipway.report.model_card import model_card
from slipway.report.page import Page, render_page
from slipway.report.parity import Parity, check_parity
from slipway.report.provenance_view import StageRecord, record_stage
from slipway.report.reading import (
    Evaluated,
    Training,
    read_data_sources,
    read_evaluated,
    read_json,
    read_steps,
    read_training,
    read_validation_record,
    without_false_cut_offs,
)
from slipway.report.samples_view import choose_samples
from slipway.report.settings_view import RunSettings, as_config, settings_tables
from slipway.report.signs import find_signs
from slipway.report.source_archive import write_source

logger = logging.getLogger(__name__)

Part = TypeVar("Part")


def write_report(paths: ResultPaths, settings: RunSettings) -> None:
    """Write report.html of a finished run, and before it figures, summary, model card, config and crate.

    Raises `SlipwayError` when a file that the report needs is missing or contradicts another.
    """
    folder = paths.run(settings.name)
    with FolderLock(folder / ".report.lock", "stage report", wait_seconds=600):
        logged = read_training(paths.train(settings.name))
        training = without_false_cut_offs(logged, settings.run.grpo.max_response_length)
        base, models = _read_models(paths, settings)
        final = models[settings.run.steps]
        of_last = compare_all(base, final, settings.run.reported_evaluations)
        checkpoints = _checkpoints_of(base, models, settings)
        judged = final if checkpoints is None else models[checkpoints.judged]
        comparisons = of_last if judged is final else compare_all(base, judged, settings.run.reported_evaluations)
        stages, hashes = _read_provenance(paths, settings)
        provenance = provenance_view.collect(paths, settings.name, stages, hashes)
        ledger = _read_ledger(folder)
        parity = _check_parity(paths, settings, training, final)
        metrics = summaries.metrics(settings.name, settings.run, comparisons, training, ledger, checkpoints)
        page = Page(
            settings=settings.run,
            name=settings.name,
            sections=settings_tables(settings),
            training=training,
            comparisons=comparisons,
            checkpoints=checkpoints,
            samples=choose_samples(base, judged, comparisons[0].evaluation),
            provenance=provenance,
            metrics=metrics,
            ledger=ledger,
            forecast=_read_forecast(folder),
            # they are about what training came to
            signs=find_signs(training, of_last, _read_findings(paths, settings.name), parity),
            parity=parity,
        )
        write_json(folder / "metrics.json", metrics)
        write_json(folder / "config.yaml", as_config(settings))  # JSON is YAML
        write_text(folder / "summary.md", summaries.summary(metrics))
        write_text(folder / "README.md", model_card(metrics, settings))
        write_source(folder)
        write_json(
            folder / "ro-crate-metadata.json", crate.describe(settings.name, provenance, folder, _names(settings))
        )
        write_text(folder / "report.html", render_page(page))
        (folder / "report.partial.html").unlink(missing_ok=True)
    logger.info("%s", summaries.one_line(metrics))
    logger.info("report: %s", folder / "report.html")


def say_verdict(paths: ResultPaths, run: str) -> None:
    """Say again what came out of a run whose report is written."""
    folder = paths.run(run)
    figures = read_json(folder / "metrics.json", "rule report", needed=("base_accuracy", "final_accuracy"))
    logger.info("%s; report: %s", summaries.one_line(figures), folder / "report.html")


def write_partial_report(paths: ResultPaths, settings: RunSettings) -> None:
    """Write report.partial.html: what there is of a run that failed, what is missing, and its last errors."""
    name, folder = settings.name, paths.run(settings.name)
    missing: list[str] = []
    training = _attempt(lambda: read_training(paths.train(name)), missing)
    if training is None:
        training = _attempt(lambda: read_steps(paths.metrics(name)), [])
    if training is not None:
        training = without_false_cut_offs(training, settings.run.grpo.max_response_length)
    pair = _attempt(lambda: (_read_model(paths, name, BASE), _read_model(paths, name, FINAL)), missing)
    comparisons = _attempt(lambda: compare_all(*pair, settings.run.reported_evaluations), missing) if pair else None
    stages = _attempt(lambda: _read_provenance(paths, settings), missing)
    provenance = _attempt(lambda: provenance_view.collect(paths, name, *stages), missing) if stages else None
    parity = _attempt(lambda: _check_parity(paths, settings, training, pair[1]), missing) if training and pair else None
    signs = _attempt(lambda: find_signs(training, comparisons or [], _read_findings(paths, name), parity), missing)
    page = Page(
        settings=settings.run,
        name=name,
        sections=settings_tables(settings),
        training=training,
        comparisons=comparisons or [],
        samples=choose_samples(*pair, comparisons[0].evaluation) if pair and comparisons else [],
        provenance=provenance,
        metrics=None,
        ledger=_attempt(lambda: _read_ledger(folder), missing),
        forecast=_attempt(lambda: _read_forecast(folder), missing),
        signs=signs or [],
        parity=parity,
        missing=list(dict.fromkeys(missing)),
        logs=last_errors(folder),
    )
    write_text(folder / "report.partial.html", render_page(page))
    logger.info("report of an unfinished run: %s", folder / "report.partial.html")


def _names(settings: RunSettings) -> list[str]:
    """Return the names of the run's evaluated models but the base: those of earlier steps, and the last."""
    return [*map(name_of_step, settings.run.evaluated_steps), FINAL]


def _read_models(paths: ResultPaths, settings: RunSettings) -> tuple[Evaluated, dict[int, Evaluated]]:
    """Return the evaluated base, and the run's evaluated models by step; the last one is there always."""
    steps = (*settings.run.evaluated_steps, settings.run.steps)
    models = {
        step: _read_model(paths, settings.name, which) for step, which in zip(steps, _names(settings), strict=True)
    }
    return _read_model(paths, settings.name, BASE), models


def _read_model(paths: ResultPaths, run: str, which: str) -> Evaluated:
    return read_evaluated(paths.evaluation_result(run, which), paths.evaluation(run, which), which)


def _checkpoints_of(
    base: Evaluated, models: Mapping[int, Evaluated], settings: RunSettings
) -> checkpoints_view.Checkpoints | None:
    run = settings.run
    if run.checkpoints is None:
        return None
    return checkpoints_view.view_checkpoints(base, models, run.evaluation, run.select_on)


def _check_parity(paths: ResultPaths, settings: RunSettings, training: Training, final: Evaluated) -> Parity | None:
    """Compare verl's last validation with the evaluation; None where there was none."""
    run, evaluation = settings.run, evaluation_of_validation(settings.run, settings.evaluations)
    if not training.validations:
        return None
    data = read_manifest(paths.data(run.data) / "manifest.json", "prepare_data")
    return check_parity(
        training,
        read_validation_record(paths.train(settings.name)),
        final,
        run,
        settings.evaluations,
        data.hash_of("heldout.parquet"),
        read_data_sources(paths.evaluation(settings.name, FINAL), evaluation) if evaluation else {},
    )


def _read_ledger(run_folder: Path) -> dict[str, Any] | None:
    """Return where the device-hours went; None before the training's end, and for an earlier version's."""
    file = run_folder / "ledger.json"
    return read_json(file, "rule train", needed=("devices", "totals", "segments")) if file.is_file() else None


def _read_forecast(run_folder: Path) -> dict[str, Any] | None:
    """Return preflight's forecast of a GPU's memory; None where there is none, as on the CPU."""
    file = run_folder / "preflight.json"
    if not file.is_file():
        return None
    forecast: dict[str, Any] | None = read_manifest(file, "preflight").facts.get("memory")
    return forecast


def _read_findings(paths: ResultPaths, run: str) -> list[dict[str, Any]]:
    """Return what preflight found; nothing where it did not run."""
    file = paths.preflight(run) / "findings.json"
    if not file.is_file():
        return []
    findings: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return findings


def _read_provenance(paths: ResultPaths, settings: RunSettings) -> tuple[list[StageRecord], dict[str, str]]:
    """Return the records of every stage whose product the run used, and the hashes of its data."""
    run = settings.name
    products = [(paths.data(name), "prepare_data") for name in settings.data]
    if settings.model.demo is not None:
        products.append((paths.hf_model(settings.run.model), "make_demo_model"))
    products += [
        (paths.megatron_model(settings.run.model), "convert_megatron"),
        (paths.train(run), "train"),
        *((paths.trained_model(run, which), "export_hf") for which in _names(settings)),
    ]
    sources = [(folder / "manifest.json", folder, stage) for folder, stage in products]
    sources += [
        (paths.evaluation_result(run, which), paths.evaluation(run, which), "evaluate")
        for which in (BASE, *_names(settings))
    ]
    hashes: dict[str, str] = {}
    stages = []
    for path, folder, stage in sources:
        manifest = read_manifest(path, stage)
        stages.append(record_stage(manifest, path, folder, paths.root))
        if stage == "prepare_data":
            hashes |= {f"data {folder.name}/{entry.path}": entry.blake3 for entry in manifest.files}
        if stage == "evaluate":
            hashes[f"{manifest.facts['checkpoint']} weights"] = manifest.facts["weights"]
    return stages, hashes


def _attempt(read: Callable[[], Part], missing: list[str]) -> Part | None:
    try:
        return read()
    except SlipwayError as error:
        missing.append(str(error))
    except Exception as error:  # the page of a broken run must come, whatever its files look like
        missing.append(f"{type(error).__name__}: {error}")
    return None
