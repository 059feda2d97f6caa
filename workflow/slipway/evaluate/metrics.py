"""Figures of one evaluation, from its scored samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from slipway import statistics
from slipway.evaluate.samples import Sample


def summarise(samples: Sequence[Sample], samples_per_question: int) -> dict[str, Any]:
    """Return the metrics of `samples`, which are ordered by question, then by sample.

    Lengths are tokens, rates are shares of all answers. pass@k is given for 1 and the powers of two up to
    `samples_per_question` when there are several samples.
    """
    correct = np.array([sample.correct for sample in samples]).reshape(-1, samples_per_question)
    lengths = np.array([sample.response_tokens for sample in samples])
    interval = statistics.accuracy_interval(correct)
    metrics: dict[str, Any] = {
        "questions": len(correct),
        "samples_per_question": samples_per_question,
        "accuracy": float(correct.mean()),
        "accuracy_ci95": [interval.low, interval.high],
        "mean_score": float(np.mean([sample.score for sample in samples])),
        "answered_rate": float(np.mean([sample.answered for sample in samples])),
        "tagged_rate": float(np.mean([sample.tagged for sample in samples])),
        "components": {
            name: float(np.mean([sample.components[name] for sample in samples])) for name in samples[0].components
        },
        "response_tokens_mean": float(lengths.mean()),
        "response_tokens_max": int(lengths.max()),
        "stopped_by_length": float(np.mean([sample.stop == "length" for sample in samples])),
    }
    if samples_per_question > 1:
        metrics["pass_at_k"] = {str(k): statistics.pass_at_k(correct, k) for k in _powers_of_two(samples_per_question)}
    return metrics


def _powers_of_two(limit: int) -> list[int]:
    return [2**power for power in range(limit.bit_length()) if 2**power <= limit]
