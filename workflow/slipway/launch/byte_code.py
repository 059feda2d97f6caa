"""Where Python keeps the byte code of packages when it may not keep it beside them.

Images and read-only file systems often forbid that. Then each of a training's processes compiles what it imports anew,
which doubles the time of imports; the processes start one after the other, six or more of them.
"""

import contextlib
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

# See "Environment variables" in Python's manual, "Command line and environment".
FORBIDDEN, FOLDER = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"
# Most of what a training's processes import, as module names.
PACKAGES = ("torch", "transformers", "verl", "megatron.core", "vllm")


def environment_for(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which Python keeps byte code; none where it does so, or is told where to, already.

    The folder is one of the user's own, made here: whoever can write to it decides what later processes run. Where it
    cannot be written to either, nothing is returned.
    """
    if FOLDER in environment or not any(_is_compiled_each_time(package, environment) for package in PACKAGES):
        return {}
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "slipway" / "byte-code"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return {}
    return {FOLDER: str(folder), FORBIDDEN: ""}


def _is_compiled_each_time(package: str, environment: Mapping[str, str]) -> bool:
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # of the package above it
        return False
    if found is None or found.origin is None:
        return False
    compiled = Path(importlib.util.cache_from_source(found.origin))
    nearest = next(folder for folder in compiled.parents if folder.is_dir())
    may_be_kept = not environment.get(FORBIDDEN) and os.access(nearest, os.W_OK)
    return not compiled.is_file() and not may_be_kept
