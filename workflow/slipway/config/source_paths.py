"""Where a source of data lies on this machine."""

import importlib.util
from pathlib import Path

from slipway.errors import SlipwayError

PREFIX = "package:"


def is_of_package(text: str) -> bool:
    """Tell whether a source's `path` names a file of an installed package."""
    return text.startswith(PREFIX)


def source_path(text: str) -> Path:
    """Return where a source's `path` is; `package:<name>/<file>` is a file of a package that is installed here.

    Raises `SlipwayError` when there is no such package, or no such file in it.
    """
    if not is_of_package(text):
        return Path(text).expanduser()
    package, _, file = text.removeprefix(PREFIX).partition("/")
    # found, not imported: an import would run its code
    found = importlib.util.find_spec(package) if package.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise SlipwayError(
            f"no package {package!r} is installed here ({text}); install it and give the name that it is imported by, "
            "or give a file"
        )
    path = Path(found.submodule_search_locations[0]) / file
    if not path.exists():
        raise SlipwayError(
            f"package {package!r} has no file {file!r} ({text}); look into {found.submodule_search_locations[0]}"
        )
    return path
