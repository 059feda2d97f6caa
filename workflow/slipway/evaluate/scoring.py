"""Score answers with the scorer that training uses."""

import json

from reasoning_gym import get_score_answer_fn

from slipway.evaluate.questions import Question
from slipway.evaluate.samples import Answer, Sample

# Part of the evaluation's inputs; raised when the same answer would be scored otherwise.
SCORER_VERSION = 0


def score_answer(question: Question, answer: Answer) -> Sample:
    """Return `answer` with its score."""
    entry = json.loads(question.extra_info["entry"])
    text = answer.response.strip()
    score = float(get_score_answer_fn(question.extra_info["dataset"])(text, entry))
    return Sample(
        **vars(answer),
        score=score,
        correct=score >= 1.0,
        formatted=bool(text),
        ground_truth=question.ground_truth,
    )
