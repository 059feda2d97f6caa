"""The workflow's own source beside a run, so that the run can be repeated from its folder alone."""

import gzip
import shutil
import subprocess
import tarfile
from pathlib import Path

from slipway.manifest import atomic_path

PROJECT = Path(__file__).resolve().parents[3]
ARCHIVE, SNAKEFILE = "source.tar.gz", "Snakefile"
# Top-level names of a source tree without git; results and environments are none of them.
PARTS = (
    "Snakefile",
    "Makefile",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "config.yaml",
    "pyproject.toml",
    "workflow",
    "profiles",
    "envs",
    "scripts",
    "tests",
    "docs",
    "benchmarks",
    "slurm",
)


def write_source(folder: Path) -> None:
    """Write `source.tar.gz` and the Snakefile to `folder`: what git tracks, as it lies there now.

    Equal files give equal bytes: no times, no owners, sorted.
    """
    with (
        atomic_path(folder / ARCHIVE) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(_tracked() or _lying_there()):
            archive.add(PROJECT / name, f"slipway/{name}", recursive=False, filter=_anonymous)
    with atomic_path(folder / SNAKEFILE) as temporary:
        shutil.copyfile(PROJECT / SNAKEFILE, temporary)


def _tracked() -> list[str]:
    """Return the files that git tracks and that are there; none outside git."""
    try:
        listed = subprocess.run(
            ["git", "-C", str(PROJECT), "ls-files", "-z"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return []
    names = [name for name in listed.stdout.split("\0") if name]
    return [name for name in names if (PROJECT / name).is_symlink() or (PROJECT / name).is_file()]


def _lying_there() -> list[str]:
    found = [PROJECT / part for part in PARTS if (PROJECT / part).exists()]
    files = [
        path for part in found for path in (part.rglob("*") if part.is_dir() and not part.is_symlink() else [part])
    ]
    return [
        str(path.relative_to(PROJECT))
        for path in files
        if (path.is_symlink() or path.is_file()) and "__pycache__" not in path.parts
    ]


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry
