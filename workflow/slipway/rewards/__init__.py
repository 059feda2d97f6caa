"""Scorers: how right a response is.

`score` is what evaluation and the data's self-test call; verl calls `verl_function.compute_score`.
"""

from slipway.rewards.scoring import Score, extract_answer, score

__all__ = ["Score", "extract_answer", "score"]
