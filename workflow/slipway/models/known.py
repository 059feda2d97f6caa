"""Models whose dimensions ship with the package, as the dimension keys of their published `config.json`."""

import difflib
from functools import cache
from pathlib import Path

from slipway.errors import SlipwayError
from slipway.models.architecture import Architecture, read_dimensions

_CONFIGS = Path(__file__).parent / "configs"


def known_models() -> list[str]:
    """Return the hub names of the models that ship, sorted."""
    return _names()


@cache
def _names() -> list[str]:
    return sorted(str(path.parent.relative_to(_CONFIGS)) for path in _CONFIGS.glob("*/*/config.json"))


def folder_of_known(model: str) -> Path:
    """Return the folder with the `config.json` of a model that ships."""
    return _CONFIGS / model


def find_dimensions(model: str) -> Architecture:
    """Return the dimensions of a model: a folder with a `config.json`, or a hub name that ships.

    Raises `SlipwayError` for a name that does not, with the nearest ones that do.
    """
    if (folder := Path(model).expanduser()).is_dir():
        return read_dimensions(folder)
    names = known_models()
    if model in names:
        return read_dimensions(folder_of_known(model))
    lower = {name.lower(): name for name in names}
    begun = [
        full for name, full in lower.items() if name.rpartition("/")[2].startswith(model.lower().rpartition("/")[2])
    ]
    near = begun[:3] or [lower[name] for name in difflib.get_close_matches(model.lower(), lower, n=3, cutoff=0.5)]
    raise SlipwayError(
        f"{model}: neither a folder with a config.json nor a model whose dimensions ship; "
        + (f"did you mean {' or '.join(near)}?" if near else f"these do: {', '.join(names)}")
    )
