"""Where a source of data lies on this machine."""

import importlib.util
from pathlib import Path

from slipway.errors import SlipwayError


def source_path(text: str) -> Path:
    """Return where a source's `path` is; `package:<name>/<file>` is a file of a package that is installed here.

    Raises `SlipwayError` when there is no such package.
    """
    prefix, colon, inside = text.partition(":")
    if not colon or prefix != "package":
        return Path(text).expanduser()
    package, _, file = inside.partition("/")
    # found, not imported: an import would run its code
    found = importlib.util.find_spec(package) if package.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise SlipwayError(f"no package {package!r} is installed here ({text}); install it, or give a file")
    return Path(found.submodule_search_locations[0]) / file
