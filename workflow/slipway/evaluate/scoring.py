"""Score answers with the scorer that training uses, and keep what is needed to do so again."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from slipway.evaluate.metrics import summarise
from slipway.evaluate.questions import Question, group_questions, problems_digest, write_questions
from slipway.evaluate.samples import Answer, Sample, answers_digest, write_samples
from slipway.rewards import score

STAGE = "evaluate"
# Raised when equal inputs would give other samples or metrics; answers have a version of their own (`answering`).
VERSION = 5


def scorers() -> dict[str, str]:
    """Return the versions of the packages that decide what is right."""
    return {name: metadata.version(name) for name in ("reasoning-gym", "math-verify")}


def samples_file(folder: Path, evaluation: str) -> Path:
    """Return where the scored answers of an evaluation are."""
    return folder / f"{evaluation}.jsonl"


def questions_file(folder: Path, evaluation: str) -> Path:
    """Return where the questions of an evaluation are, each once, with the settings that scored its answers."""
    return folder / "questions" / f"{evaluation}.jsonl"


def score_and_keep(
    folder: Path, evaluation: str, questions: Sequence[Question], answers: Sequence[Answer]
) -> tuple[list[Sample], dict[str, Any]]:
    """Score `answers`, ordered by question, then by sample; write questions and samples, return samples and metrics."""
    each = len(answers) // len(questions)
    asked = [question for question in questions for _ in range(each)]
    # as many at once as verl's reward workers have: a program's tests wait for other processes
    with ThreadPoolExecutor() as threads:
        samples = list(threads.map(score_answer, asked, answers))
    write_questions(questions_file(folder, evaluation), questions)
    write_samples(samples_file(folder, evaluation), samples)
    metrics = summarise(samples, each, group_questions(questions))
    return samples, metrics | {"problems": problems_digest(questions), "answers": answers_digest(answers)}


def score_answer(question: Question, answer: Answer) -> Sample:
    """Return `answer` with its score."""
    result = score(answer.response, question.extra_info["entry"], question.extra_info["reward"])
    return Sample(
        **vars(answer),
        score=result.score,
        correct=result.correct,
        answered=result.answered,
        tagged=result.tagged,
        components=result.components,
        ground_truth=question.ground_truth,
        answer=result.answer,
    )
