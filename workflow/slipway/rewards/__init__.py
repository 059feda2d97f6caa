"""Scorers: how right a response is, and what it earns.

* `scoring`: one response to its `Score`: the composite of weighted components
* `scorers`: one file a task, which says what is right
* `components`, `custom`: what a response can earn besides: syntax, style, length, the user's own
* `sandbox`: where model-written programs run
* `worker`: calls with a time limit that holds
* `verl_function`: what verl calls

`score` is what evaluation and the data's self-test call; verl calls `verl_function.compute_score`.
"""

from slipway.rewards.scorers import scorer_for
from slipway.rewards.scoring import Score, score
from slipway.rewards.settings import reward_text

__all__ = ["Score", "reward_text", "score", "scorer_for"]
