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


def find_folder(model: str) -> Path | None:
    """Return the folder with a model's `config.json`: its own, or that of a hub name that ships; else None."""
    if (folder := Path(model).expanduser()).is_dir():
        return folder
    return _CONFIGS / model if model in known_models() else None


def find_dimensions(model: str) -> Architecture:
    """Return the dimensions of a model: a folder with a `config.json`, or a hub name that ships.

    Raises `SlipwayError` for a name that does not, with the nearest ones that do.
    """
    if (folder := find_folder(model)) is not None:
        return read_dimensions(folder)
    names = known_models()
    lower = {name.lower(): name for name in names}
    begun = [
        full for name, full in lower.items() if name.rpartition("/")[2].startswith(model.lower().rpartition("/")[2])
    ]
    near = begun[:3] or [lower[name] for name in difflib.get_close_matches(model.lower(), lower, n=3, cutoff=0.5)]
    raise SlipwayError(
        f"{model}: neither a folder with a config.json nor a model whose dimensions ship; "
        + (f"did you mean {' or '.join(near)}?" if near else f"these do: {', '.join(names)}")
    )
