"""What the reward function returns beside the reward is logged for every step of a training."""

import pytest

pytestmark = pytest.mark.verl


def test_components_are_logged_by_their_mean() -> None:
    from slipway.launch.verl_changes.trainer import means_of_components

    infos = [{"score": 1.0, "style": 0.5}, {"score": 0.0, "style": 1.0}]
    assert means_of_components(infos) == {"reward/score": 0.5, "reward/style": 0.75}
    assert means_of_components([]) == {}
