"""The files of a run, read into typed values. Every reader either returns a whole value or raises."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipway.errors import SlipwayError
from slipway.manifest import Manifest, read_manifest, verify_files

CUT_OFF = "response_length/clip_ratio"


@dataclass(frozen=True)
class Step:
    """One training step and what verl logged of it; a value that was not finite is left out."""

    number: int
    values: dict[str, float]


@dataclass(frozen=True)
class Training:
    """What training logged; `validations` are verl's in-loop ones, by step (0: before training)."""

    steps: list[Step]
    validations: list[Step]
    manifest: Manifest | None


@dataclass(frozen=True)
class ValidationRecord:
    """How verl validated in a training's last segment; `questions` is the digest of their file.

    `most_questions` is -1 for all of them, `max_response_length` is in tokens.
    """

    questions: str
    most_questions: int
    temperature: float
    top_p: float
    top_k: int
    max_response_length: int


@dataclass(frozen=True)
class SampleRow:
    """One scored answer of an evaluation, as `evaluate` wrote it."""

    question_id: str
    sample: int
    prompt: str
    response: str
    response_tokens: int
    stop: str
    score: float
    correct: bool
    ground_truth: str


@dataclass(frozen=True)
class Evaluated:
    """One evaluated model: the digest of its weights, metrics and samples by evaluation."""

    checkpoint: str
    weights: str
    metrics: dict[str, dict[str, Any]]
    samples: dict[str, list[SampleRow]]
    manifest: Manifest


def read_steps(path: Path) -> Training:
    """Read verl's metrics file.

    A step that occurs twice was trained again after a resume: the later line counts. Raises `SlipwayError`
    when the file is missing, holds no training step, or lacks steps in between.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise SlipwayError(f"{path}: missing; rule train writes it") from None
    except UnicodeDecodeError as error:
        raise SlipwayError(f"{path}: not a metrics file of verl ({error})") from None
    values: dict[int, dict[str, float]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            values.setdefault(record["step"], {}).update(_finite(record["data"]))
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise SlipwayError(f"{path}, line {number}: not a metrics line of verl ({error!r})") from None
    steps = [Step(step, values[step]) for step in sorted(values) if step > 0]
    if not steps:
        raise SlipwayError(f"{path}: holds no training step, so there is nothing to report")
    absent = sorted(set(range(1, steps[-1].number + 1)) - set(values))
    if absent:
        shown = ", ".join(map(str, absent[:10]))
        raise SlipwayError(f"{path}: lacks step {shown}; it was cut or overwritten")
    validations = [
        Step(step, validation)
        for step in sorted(values)
        if (validation := {key: v for key, v in values[step].items() if key.startswith("val-core/")})
    ]
    return Training(steps, validations, None)


def read_training(train_folder: Path) -> Training:
    """Read a finished training: its manifest and its metrics, which must agree on the number of steps."""
    manifest = read_manifest(train_folder / "manifest.json", "train")
    logged = read_steps(train_folder / "metrics.jsonl")
    promised = manifest.facts.get("steps")
    if promised != logged.steps[-1].number:
        raise SlipwayError(
            f"{train_folder / 'metrics.jsonl'}: ends at step {logged.steps[-1].number}, but the manifest of "
            f"train says {promised} steps"
        )
    return Training(logged.steps, logged.validations, manifest)


def read_validation_record(train_folder: Path) -> ValidationRecord | None:
    """Return how the last segment validated; None where it did not, or was of a version that kept no record."""
    segments = sorted(path for path in (train_folder / "segments").glob("*") if path.is_dir())
    path = segments[-1] / "validation.json" if segments else None
    if path is None or not path.is_file():
        return None
    names = ValidationRecord.__dataclass_fields__
    record = read_json(path, "rule train", needed=tuple(names))
    return ValidationRecord(**{name: record[name] for name in names})


def read_data_sources(evaluation_folder: Path, evaluation: str) -> dict[str, str]:
    """Return the data source of each question of an evaluation, as verl names it, by the question's id."""
    path = evaluation_folder / "questions" / f"{evaluation}.jsonl"
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        return {row["question_id"]: row["data_source"] for row in rows}
    except FileNotFoundError:
        raise SlipwayError(f"{path}: missing; rule evaluate writes it") from None
    except (ValueError, KeyError, TypeError) as error:
        raise SlipwayError(f"{path}: damaged ({error!r}); run rule evaluate again") from None


def without_false_cut_offs(training: Training, max_response_length: int) -> Training:
    """Set the share of cut-off responses to 0 in steps whose longest response is shorter than the limit.

    verl counts the responses that are as long as the longest of the batch (metric_utils.py:576 of 0.9.1 takes the
    width of the padded batch for the limit).
    """

    def corrected(step: Step) -> Step:
        longest = step.values.get("response_length/max")
        if CUT_OFF not in step.values or longest is None or longest >= max_response_length:
            return step
        return Step(step.number, step.values | {CUT_OFF: 0.0})

    return replace(training, steps=[corrected(step) for step in training.steps])


def read_evaluated(result: Path, folder: Path, checkpoint: str) -> Evaluated:
    """Read the result of `evaluate` and the samples it vouches for; hashes and counts are checked."""
    manifest = read_manifest(result, "evaluate")
    facts = manifest.facts
    if facts.get("checkpoint") != checkpoint:
        raise SlipwayError(f"{result}: evaluates {facts.get('checkpoint')!r}, expected {checkpoint!r}")
    verify_files(manifest, folder)
    samples = {name: read_samples(folder / f"{name}.jsonl") for name in facts["evaluations"]}
    for name, metrics in facts["evaluations"].items():
        expected = metrics["questions"] * metrics["samples_per_question"]
        if len(samples[name]) != expected:
            raise SlipwayError(
                f"{folder / f'{name}.jsonl'}: holds {len(samples[name])} samples, {result} says {expected}"
            )
        if any("tagged_rate" not in row for groups in metrics.get("by_group", {}).values() for row in groups.values()):
            raise SlipwayError(
                f"{result}: an earlier version wrote its figures by group, without lengths; evaluate again with "
                "`scripts/evaluate.py --rescore`, which generates nothing"
            )
    return Evaluated(checkpoint, facts["weights"], facts["evaluations"], samples, manifest)


def read_samples(path: Path) -> list[SampleRow]:
    """Read the samples of one evaluation."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise SlipwayError(f"{path}: missing; rule evaluate writes it") from None
    names = SampleRow.__dataclass_fields__
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
            rows.append(SampleRow(**{name: record[name] for name in names}))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise SlipwayError(f"{path}, line {number}: not a sample ({error!r})") from None
    return rows


def read_json(path: Path, maker: str, needed: Sequence[str] = ()) -> dict[str, Any]:
    """Read a JSON object that `maker` writes and that has the `needed` keys."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SlipwayError(f"{path}: missing; {maker} writes it") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SlipwayError(f"{path}: not JSON ({error}); delete it and make it again") from None
    if not isinstance(content, dict):
        raise SlipwayError(f"{path}: holds no JSON object; delete it and make it again")
    absent = [key for key in needed if key not in content]
    if absent:
        raise SlipwayError(f"{path}: has no {', '.join(absent)}; make it again")
    return content


def _finite(data: dict[str, Any]) -> dict[str, float]:
    # verl's logger writes NaN and infinity as null
    return {
        key: float(value)
        for key, value in data.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
