"""Score answers with the scorer that training uses."""

from slipway.evaluate.questions import Question
from slipway.evaluate.samples import Answer, Sample
from slipway.rewards import score


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
