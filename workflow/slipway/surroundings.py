"""What the commands of rules find in their environment: interpreter, package, and the config that was checked."""

import importlib.util
import os
import sys
from pathlib import Path

CONFIG_VARIABLE = "SLIPWAY_CONFIG"


def prepare_environment(package_root: Path) -> None:
    """Let rules' commands find this interpreter (unless a conda environment brings its own) and this package.

    In front of them is the `sacct` which keeps the SLURM executor plugin from waiting for ever.
    """
    mended_commands = package_root.parent / "profiles/slurm/bin"
    first = [str(mended_commands), str(Path(sys.executable).parent)]
    os.environ["PATH"] = os.pathsep.join([*first, os.environ.get("PATH", "")])
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(package_root), inherited]))
    # OpenMP's threads spin while they wait, which makes two busy programs on one machine ten times slower than one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def use_config(path: Path) -> None:
    """Name the copy of the config that scripts are to read."""
    os.environ[CONFIG_VARIABLE] = str(path)


def config_in_use() -> Path:
    """Return the copy of the config that the main process checked."""
    return Path(os.environ[CONFIG_VARIABLE])


def is_installed(package: str) -> bool:
    """Return whether a Python package of that name can be imported here; imports nothing."""
    return importlib.util.find_spec(package) is not None
