"""Rule `evaluate`: from a model and held-out questions to samples, metrics and a manifest."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from slipway.config.schema import Evaluation
from slipway.errors import SlipwayError
from slipway.evaluate.generate_transformers import LoadedModel, Sampling, generate, load_model
from slipway.evaluate.metrics import summarise
from slipway.evaluate.questions import Question, group_questions, read_questions
from slipway.evaluate.samples import Answer, Journal, write_samples
from slipway.evaluate.scoring import score_answer
from slipway.manifest import Product, fingerprint, hash_file, open_product, read_manifest

STAGE = "evaluate"
# Raised when equal inputs would give other samples or metrics.
VERSION = 2
# Files of a Hugging Face folder that decide what the model says.
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
NOT_MODEL_FILES = ("manifest.json", "provenance.json", ".complete.json")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationTask:
    """One evaluation to do: its name in the config, its settings, its data, and its tokens per answer."""

    name: str
    settings: Evaluation
    data_folder: Path
    max_response_length: int


def evaluate_model(
    which: str, model_folder: Path, tasks: Sequence[EvaluationTask], manifest_path: Path, folder: Path
) -> None:
    """Evaluate the model in `model_folder` by all `tasks`; write samples to `folder`, then the manifest.

    `which` is "base" or "final". A task whose answers were all generated before, with the same model,
    questions and settings, is scored again without generating.
    """
    files = model_files(model_folder)
    inputs = {
        "version": VERSION,
        # the datasets score with their own code
        "reasoning-gym": metadata.version("reasoning-gym"),
        "checkpoint": which,
        "model": files,
        "evaluations": {task.name: task_inputs(task) for task in tasks},
    }
    with open_product(STAGE, manifest_path, folder, inputs) as product:
        if product.restore():
            return
        loaded = load_model(model_folder)
        evaluations = {task.name: _evaluate(product, which, loaded, files, task) for task in tasks}
        facts = {"checkpoint": which, "weights": loaded.weights, "evaluations": evaluations}
        product.publish([folder / f"{task.name}.jsonl" for task in tasks], facts)


def model_files(folder: Path) -> dict[str, str]:
    """Return the digests of the files that make up a model: weights, config, tokenizer."""
    paths = {path for pattern in MODEL_FILES for path in folder.glob(pattern)}
    names = sorted(path.name for path in paths if path.name not in NOT_MODEL_FILES)
    if not any(name.endswith(".safetensors") for name in names):
        raise SlipwayError(f"{folder}: holds no *.safetensors, so it is no model to evaluate")
    return {name: hash_file(folder / name) for name in names}


def task_inputs(task: EvaluationTask) -> dict[str, Any]:
    """Return all that the answers of a task depend on besides the model; the batch size is not part of it."""
    manifest = read_manifest(task.data_folder / "manifest.json", "prepare_data")
    settings = task.settings
    return {
        "heldout": manifest.hash_of("heldout.parquet"),
        "questions": settings.questions,
        "samples": settings.samples,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_response_length": task.max_response_length,
        "seed": settings.seed,
    }


def _evaluate(
    product: Product, which: str, loaded: LoadedModel, files: dict[str, str], task: EvaluationTask
) -> dict[str, Any]:
    questions = read_questions(task.data_folder / "heldout.parquet", task.settings.questions)
    answers = _generate_missing(_open_journal(product.folder, files, task), loaded, questions, task, which)
    pairs = [
        (question, answers[question.question_id, sample])
        for question in questions
        for sample in range(task.settings.samples)
    ]
    # as many at once as verl's reward workers have: a program's tests wait for other processes
    with ThreadPoolExecutor() as threads:
        samples = list(threads.map(lambda pair: score_answer(*pair), pairs))
    write_samples(product.folder / f"{task.name}.jsonl", samples)
    metrics = summarise(samples, task.settings.samples, group_questions(questions))
    low, high = metrics["accuracy_ci95"]
    logger.info(
        "evaluate %s %s: accuracy %.1f %% (95 %%: %.1f to %.1f) on %d questions",
        *(which, task.name, 100 * metrics["accuracy"], 100 * low, 100 * high, len(questions)),
    )
    return metrics | {"settings": task_inputs(task)}


def _open_journal(folder: Path, files: dict[str, str], task: EvaluationTask) -> Journal:
    identity = fingerprint({"version": VERSION, "model": files, "task": task_inputs(task)})
    path = folder / "journal" / f"{task.name}-{identity[:16]}.jsonl"
    # answers to other settings are of no use any more
    for other in path.parent.glob(f"{task.name}-{'?' * 16}.jsonl"):
        if other != path:
            other.unlink()
    return Journal(path)


def _generate_missing(
    journal: Journal, loaded: LoadedModel, questions: Sequence[Question], task: EvaluationTask, which: str
) -> dict[tuple[str, int], Answer]:
    settings = task.settings
    answers = journal.read()
    requests = [
        (question, sample)
        for question in questions
        for sample in range(settings.samples)
        if (question.question_id, sample) not in answers
    ]
    total = len(questions) * settings.samples
    if len(requests) < total:
        logger.info(
            "evaluate %s %s: %d of %d answers are there already",
            *(which, task.name, total - len(requests), total),
        )
    sampling = Sampling(
        settings.temperature, settings.top_p, task.max_response_length, settings.batch_size, settings.seed
    )
    started, done = time.monotonic(), 0
    for batch in generate(loaded, requests, sampling):
        journal.append(batch)
        answers |= {(answer.question_id, answer.sample): answer for answer in batch}
        done += len(batch)
        rate = done / (time.monotonic() - started)
        logger.info(
            "evaluate %s %s: %d/%d answers, %.1f a second, %.0f s left",
            *(which, task.name, total - len(requests) + done, total, rate, (len(requests) - done) / rate),
        )
    return answers
