"""Sources: where records come from, read in blocks that workers share out among them."""

from slipway.config import schema
from slipway.data.sources.base import Block, Source
from slipway.data.sources.files import SUFFIXES, open_files
from slipway.data.sources.generated import GeneratedSource, check_settings
from slipway.data.sources.hub import open_hub

__all__ = ["SUFFIXES", "Block", "GeneratedSource", "Source", "check_settings", "open_source"]


def open_source(settings: schema.Source, key: str, seed: int, generated: int) -> Source:
    """Open what `settings` name; `key` is theirs in the config, for messages.

    A generator makes at most `generated` problems.
    Raises `SlipwayError` when it is not there or cannot be read.
    """
    if settings.dataset is not None:
        return GeneratedSource(settings.dataset, settings.parameters, seed, generated)
    return open_files(settings, key) or open_hub(settings, key)
