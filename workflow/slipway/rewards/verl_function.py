"""The reward function of `slipway.rewards` with the signature that verl calls.

Set `reward.custom_reward_function.path=pkg://slipway.rewards.verl_function`, name `compute_score` (verl's default).
verl calls it in threads of its reward workers, one call a response, and logs every number in the returned dict in
validation; slipway.launch.verl_changes.trainer logs them in training too.
"""

from typing import Any

from slipway.errors import SlipwayError
from slipway.rewards.entry import read_entry
from slipway.rewards.scoring import score


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, float]:
    """Return `score`, which verl takes as the reward, and its components as numbers.

    Raises `SlipwayError` when the row is not one of Slipway's: verl would take anything returned for a reward.
    """
    absent = [key for key in ("entry", "reward") if extra_info is None or key not in extra_info]
    if extra_info is None or absent:
        raise SlipwayError(
            f"row of data_source {data_source!r}: extra_info has no `{absent[0]}`; train on parquet of rule "
            "prepare_data"
        )
    problem = read_entry(extra_info["entry"])
    if data_source != f"{problem['task']}/{extra_info.get('dataset')}":
        raise SlipwayError(
            f"row of data_source {data_source!r} says task {problem['task']!r} and dataset "
            f"{extra_info.get('dataset')!r}: they must agree"
        )
    if problem["answer"] != ground_truth:
        raise SlipwayError(
            f"row of data_source {data_source!r}: ground_truth {ground_truth!r}, but the answer of its entry is "
            f"{problem['answer']!r}"
        )
    result = score(solution_str, extra_info["entry"], extra_info["reward"])
    return {
        "score": result.score,
        "correct": float(result.correct),
        "answered": float(result.answered),
        "tagged": float(result.tagged),
        **result.components,
    }
