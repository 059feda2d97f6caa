"""Models whose dimensions ship with the package, as the dimension keys of their published `config.json`."""

import difflib
from pathlib import Path

from slipway.errors import SlipwayError
from slipway.models.architecture import Architecture, read_dimensions

_CONFIGS = Path(__file__).parent / "configs"


def known_models() -> list[str]:
    """Return the hub names of the models that ship, sorted."""
    return sorted(str(path.parent.relative_to(_CONFIGS)) for path in _CONFIGS.glob("*/*/config.json"))


def find_dimensions(model: str) -> Architecture:
    """Return the dimensions of a model: a folder with a `config.json`, or a hub name that ships.

    Raises `SlipwayError` for a name that does not, with the nearest ones that do.
    """
    if (folder := Path(model).expanduser()).is_dir():
        return read_dimensions(folder)
    names = known_models()
    if model in names:
        return read_dimensions(_CONFIGS / model)
    lower = {name.lower(): name for name in names}
    near = [lower[name] for name in difflib.get_close_matches(model.lower(), lower, n=3, cutoff=0.5)]
    raise SlipwayError(
        f"{model}: neither a folder with a config.json nor a model whose dimensions ship; "
        + (f"did you mean {' or '.join(near)}?" if near else f"these do: {', '.join(names)}")
    )
