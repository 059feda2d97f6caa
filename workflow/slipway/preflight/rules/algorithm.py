"""Rules of the algorithm: advantage, KL, loss."""

from collections.abc import Iterator

from slipway.config.verl import ACTOR, ROLLOUT
from slipway.preflight.findings import Finding
from slipway.preflight.subject import Subject

# verl/trainer/ppo/core_algos.py, AdvantageEstimator
ESTIMATORS = (
    *("gae", "grpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo", "opo", "grpo_passk"),
    *("gpg", "rloo_vectorized", "grpo_vectorized", "optimal_token_baseline", "tir_optimal_token_baseline", "gdpo"),
)
# Their baseline is the group of a prompt's responses.
GROUPED = ("grpo", "grpo_passk", "grpo_vectorized", "gdpo", "rloo", "rloo_vectorized", "opo")
# verl/trainer/ppo/core_algos.py, kl_penalty_forward; a `+` behind it asks for unbiased gradients
KL_TYPES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
# verl/workers/config/actor.py:212
AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
# verl/trainer/ppo/core_algos.py, register_policy_loss
LOSSES = (
    *("vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro", "cispo"),
    "bypass_mode",
)


def check(subject: Subject) -> Iterator[Finding]:
    """Yield names that verl does not know until the first update, and groups without a baseline."""
    yield from _named(subject, "R36", "algorithm.adv_estimator", ESTIMATORS)
    samples = subject.count(f"{ROLLOUT}.n")
    if subject.get("algorithm.adv_estimator") in GROUPED and samples == 1:
        # verl/trainer/ppo/core_algos.py:315
        yield subject.error(
            "R37",
            f"{ROLLOUT}.n",
            "a group of one response has no baseline: the raw reward would become the advantage.",
            "Use 8, at least 2.",
        )
    in_loss, in_reward = subject.get(f"{ACTOR}.use_kl_loss") is True, subject.get("algorithm.use_kl_in_reward") is True
    if in_loss:
        yield from _kl_type(subject, f"{ACTOR}.kl_loss_type")
    if in_reward:
        yield from _kl_type(subject, "algorithm.kl_penalty")
    if in_loss and in_reward:
        # verl/utils/config.py:185 prints a notice
        yield subject.warning(
            "R39", "algorithm.use_kl_in_reward", "the KL divergence counts in the loss too, and so twice.", "Use one."
        )
    yield from _named(subject, "R40", f"{ACTOR}.loss_agg_mode", AGGREGATIONS)
    yield from _named(subject, "R40", f"{ACTOR}.policy_loss.loss_mode", LOSSES)


def _kl_type(subject: Subject, key: str) -> Iterator[Finding]:
    value = subject.get(key)
    if not isinstance(value, str) or value.removesuffix("+") not in KL_TYPES:
        # verl/trainer/ppo/core_algos.py:2251, a bare NotImplementedError
        yield subject.error(
            "R38", key, "no estimator of the KL divergence that verl has.", f"Use one of {', '.join(KL_TYPES)}."
        )


def _named(subject: Subject, rule: str, key: str, names: tuple[str, ...]) -> Iterator[Finding]:
    if subject.get(key) not in names:
        yield subject.error(rule, key, "verl has none of that name.", f"Use one of {', '.join(names)}.")
