"""The `reward` settings of a data set as the JSON text that its rows carry."""

import json
from functools import lru_cache

from pydantic import ValidationError

from slipway.config.schema import Reward
from slipway.errors import SlipwayError
from slipway.rewards.custom import read_source


class RowReward(Reward):
    """Settings as a row carries them: with the source of the user's function, so that all rows are scored alike."""

    custom_source: str | None = None


def reward_text(settings: Reward) -> str:
    """Return `settings` as JSON with sorted keys; the user's function is tried and goes along as source."""
    source = read_source(settings.custom) if settings.custom else None
    return json.dumps(settings.model_dump(mode="json") | {"custom_source": source}, sort_keys=True)


@lru_cache(maxsize=64)
def read_reward(text: str) -> RowReward:
    """Return the settings in `text`; raise `SlipwayError` when it is damaged."""
    try:
        return RowReward.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SlipwayError(
            f"extra_info.reward: {key or 'text'}: {first['input']!r}: {first['msg']}; prepare the data again"
        ) from None
