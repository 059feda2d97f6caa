"""verl's in-loop validation follows the run's evaluation of the same questions, so that the two can be compared."""

from collections.abc import Mapping
from typing import Any

from slipway.config.schema import Evaluation, Run
from slipway.config.verl import ROLLOUT


def evaluation_of_validation(run: Run, evaluations: Mapping[str, Evaluation]) -> str | None:
    """Return the run's first evaluation on the held-out questions of its own data: those that verl validates on."""
    named = (name for name in run.evaluation if name in evaluations)
    return next((name for name in named if evaluations[name].data == run.data), None)


def validation_settings(run: Run, evaluations: Mapping[str, Evaluation]) -> dict[str, Any]:
    """Return the dotted verl keys of how validation samples; none where verl does not validate.

    One answer a question stays verl's default, since more make every validation dearer and not another measurement.
    verl has no length of its own for validation: that of training holds.
    """
    name = evaluation_of_validation(run, evaluations)
    if run.validate_every == 0 or name is None:
        return {}
    followed = evaluations[name]
    return {
        f"{ROLLOUT}.val_kwargs.temperature": followed.temperature,
        f"{ROLLOUT}.val_kwargs.top_p": followed.top_p,
        f"{ROLLOUT}.val_kwargs.do_sample": followed.temperature > 0,
    }
