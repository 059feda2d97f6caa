"""verl's last in-loop validation against the evaluation of the same weights: the same measurement by two engines.

Compared only where questions, sampling and length are the same; else the page says what was not.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipway.config.schema import Evaluation, Run
from slipway.config.validation import evaluation_of_validation
from slipway.report.comparison import answers_by_question
from slipway.report.reading import Evaluated, Training, ValidationRecord

# Two means of the same answers' distribution lie further apart than so many standard errors once in 370 times.
STANDARD_ERRORS = 3.0


@dataclass(frozen=True)
class SourceParity:
    """The mean score of one data source's questions, measured twice; `tolerance` is what sampling explains."""

    name: str
    questions: int
    validated: float
    evaluated: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether the two differ by no more than sampling explains."""
        return abs(self.validated - self.evaluated) <= self.tolerance


@dataclass(frozen=True)
class Parity:
    """What the two measurements say by data source, or why they cannot be compared."""

    evaluation: str | None
    sources: Sequence[SourceParity]
    obstacles: Sequence[str]


def check_parity(
    training: Training,
    record: ValidationRecord | None,
    final: Evaluated,
    run: Run,
    evaluations: Mapping[str, Evaluation],
    questions: str,
    data_sources: Mapping[str, str],
) -> Parity | None:
    """Compare the last validation with the evaluation of the trained model; None where verl did not validate.

    `questions` is the digest of the held-out file of the run's data, `data_sources` the source of each of its
    questions that was evaluated.
    """
    if not training.validations:
        return None
    evaluation = evaluation_of_validation(run, evaluations)
    if evaluation is None:
        return Parity(None, [], [f"no evaluation of the run asks the held-out questions of its own data ({run.data})"])
    settings = evaluations[evaluation]
    obstacles = list(_obstacles(training, record, settings, run, questions))
    if obstacles:
        return Parity(evaluation, [], obstacles)
    scores = {key: [row.score for row in rows] for key, rows in answers_by_question(final, evaluation).items()}
    validated = _mean_scores(training.validations[-1].values)
    evaluated = {name: [scores[key] for key, of in data_sources.items() if of == name] for name in validated}
    if set(data_sources.values()) != set(validated):
        theirs, ours = ", ".join(sorted(validated)), ", ".join(sorted(set(data_sources.values())))
        return Parity(evaluation, [], [f"validation logged {theirs or 'no mean score'}, the evaluation has {ours}"])
    return Parity(
        evaluation,
        [_compare(name, *validated[name], np.array(evaluated[name])) for name in sorted(validated)],
        [],
    )


def _obstacles(
    training: Training, record: ValidationRecord | None, settings: Evaluation, run: Run, questions: str
) -> Iterator[str]:
    """Yield what keeps the two from being the same measurement."""
    last, end = training.validations[-1].number, training.steps[-1].number
    if last != end:
        yield f"the last validation was of step {last}, the evaluation is of step {end}"
    if record is None:
        yield "the training kept no record of how it validated"
        return
    if record.questions != questions:
        yield "the held-out questions, or their reward, have changed since"
    if settings.skip_questions or settings.questions is not None or record.most_questions > 0:
        theirs, ours = (str(n) if n > 0 else "all" for n in (record.most_questions, settings.questions or -1))
        after = f" after the first {settings.skip_questions}" if settings.skip_questions else ""
        yield f"questions: {theirs} in validation, {ours}{after} in the evaluation, which need not be the same ones"
    length = settings.max_response_length or run.grpo.max_response_length
    pairs = [
        ("temperature", record.temperature, settings.temperature),
        ("length limit, tokens", record.max_response_length, length),
    ]
    if record.temperature > 0:
        # a greedy answer is the same whatever the nucleus; -1 and 0 stand for no top_k
        pairs += [("top_p", record.top_p, settings.top_p), ("top_k", max(record.top_k, 0), 0)]
    for name, validated, evaluated in pairs:
        if validated != evaluated:
            yield f"{name}: {validated:g} in validation, {evaluated:g} in the evaluation"


def _mean_scores(values: Mapping[str, float]) -> dict[str, tuple[float, int]]:
    """Return the mean reward and the answers a question by data source, of what verl logs.

    Keys are `val-core/<source>/reward/mean@<answers>` (trainer_base.py, _val_metrics_update, of verl 0.9.1).
    """
    found = {}
    for key, value in values.items():
        path, _, answers = key.partition("/")[2].rpartition("/mean@")
        source, _, variable = path.rpartition("/")
        if variable == "reward":
            found[source] = (value, int(answers))
    return found


def _compare(name: str, validated: float, answers: int, scores: NDArray[np.float64]) -> SourceParity:
    """Compare a mean over `answers` a question with our `scores`, an array `[questions, samples]`.

    The questions are the same, so only the scatter of answers to one question counts. With one sample a question it
    is not known; the scatter over all questions, which is never smaller, stands for it. Where no answer differed,
    one in as many is assumed to.
    """
    questions, samples = scores.shape
    scatter = float((scores.var(axis=1, ddof=1) if samples > 1 else scores.var()).mean())
    unseen = max(1.0, float(np.abs(scores).max())) ** 2 / scores.size
    error = math.sqrt(max(scatter, unseen) / questions * (1 / samples + 1 / answers))
    return SourceParity(name, questions, validated, float(scores.mean()), STANDARD_ERRORS * error)
