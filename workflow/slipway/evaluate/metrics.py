"""Figures of one evaluation, from its scored samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway import statistics
from slipway.evaluate.samples import Sample


def summarise(
    samples: Sequence[Sample], samples_per_question: int, groups: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return the metrics of `samples`, which are ordered by question, then by sample.

    `groups` names, by property, the group of each question; figures of groups are in `by_group`.

    Lengths are tokens, rates are shares of all answers. With several samples a question, pass@k and maj@k
    are given for 1 and the powers of two up to their number.
    """
    correct = _correct(samples, samples_per_question)
    metrics: dict[str, Any] = _figures(samples, samples_per_question) | {
        "samples_per_question": samples_per_question,
        "mean_score": float(np.mean([sample.score for sample in samples])),
        "components": {
            name: float(np.mean([sample.components[name] for sample in samples])) for name in samples[0].components
        },
        "response_tokens_max": max(sample.response_tokens for sample in samples),
    }
    if samples_per_question > 1:
        answers = [sample.answer or None for sample in samples]
        votes = [
            answers[start : start + samples_per_question] for start in range(0, len(answers), samples_per_question)
        ]
        powers = _powers_of_two(samples_per_question)
        metrics["pass_at_k"] = {str(k): statistics.pass_at_k(correct, k) for k in powers}
        metrics["maj_at_k"] = {str(k): statistics.majority_at_k(correct, votes, k) for k in powers}
    if groups:
        metrics["by_group"] = {
            name: _by_group(samples, samples_per_question, values) for name, values in groups.items()
        }
    return metrics


def _figures(samples: Sequence[Sample], samples_per_question: int) -> dict[str, Any]:
    """Return the figures that are given of all questions and of each group."""
    correct = _correct(samples, samples_per_question)
    interval = statistics.accuracy_interval(correct)
    return {
        "questions": len(correct),
        "accuracy": float(correct.mean()),
        "accuracy_ci95": [interval.low, interval.high],
        "answered_rate": float(np.mean([sample.answered for sample in samples])),
        "tagged_rate": float(np.mean([sample.tagged for sample in samples])),
        "response_tokens_mean": float(np.mean([sample.response_tokens for sample in samples])),
        "stopped_by_length": float(np.mean([sample.stop == "length" for sample in samples])),
    }


def _correct(samples: Sequence[Sample], samples_per_question: int) -> NDArray[np.bool_]:
    return np.array([sample.correct for sample in samples]).reshape(-1, samples_per_question)


def _by_group(samples: Sequence[Sample], samples_per_question: int, values: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the figures of each group of questions; `values` is the group of each question."""
    of_sample = [value for value in values for _ in range(samples_per_question)]
    return {
        value: _figures(
            [sample for sample, group in zip(samples, of_sample, strict=True) if group == value], samples_per_question
        )
        for value in sorted(set(values))
    }


def _powers_of_two(limit: int) -> list[int]:
    return [2**power for power in range(limit.bit_length()) if 2**power <= limit]
