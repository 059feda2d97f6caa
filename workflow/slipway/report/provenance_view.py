"""From what, by what and when a run was made: the page's last section, and the crate's source."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.config.paths import ResultPaths
from slipway.errors import SlipwayError
from slipway.manifest import Manifest, hash_file
from slipway.report.reading import read_json


@dataclass(frozen=True)
class StageRecord:
    """One stage's product: path of its manifest below the results folder, digest, and its sidecar."""

    stage: str
    path: str
    digest: str
    sidecar: dict[str, Any]

    @property
    def seconds(self) -> float | None:
        """How long the stage worked on it."""
        return self.sidecar.get("seconds")

    @property
    def commit(self) -> str:
        """The code's commit, marked when there were uncommitted changes; "unknown" outside git."""
        code = self.sidecar.get("code") or {}
        changed = " with uncommitted changes" if code.get("uncommitted_changes") else ""
        return f"{code['commit'][:12]}{changed}" if "commit" in code else "unknown"


@dataclass(frozen=True)
class Provenance:
    """Stages, package versions by stage where they differ, hashes of inputs, and the command that repeats
    it by the config beside the report."""

    stages: list[StageRecord]
    packages: dict[str, str]
    hashes: dict[str, str]
    command: str


def record_stage(manifest: Manifest, path: Path, folder: Path, root: Path) -> StageRecord:
    """Describe a product; the sidecar `provenance.json` in its folder is needed."""
    return StageRecord(
        manifest.stage,
        str(path.relative_to(root)),
        manifest.digest,
        read_json(folder / "provenance.json", f"rule {manifest.stage}"),
    )


def collect(paths: ResultPaths, run: str, stages: list[StageRecord], hashes: dict[str, str]) -> Provenance:
    """Put the stages' records together; raises `SlipwayError` when the run's verl config is missing."""
    folder = f"{paths.root.name}/{run}"
    profile = "slurm" if any(stage.sidecar.get("slurm_job") for stage in stages) else "profiles/local"
    return Provenance(
        stages=stages,
        packages=_packages(stages),
        hashes=hashes | {"verl.yaml": file_digest(paths.verl_config(run))},
        command=f"snakemake --profile {profile} --configfile {folder}/config.yaml -- {folder}/report.html",
    )


def file_digest(path: Path) -> str:
    """Return the BLAKE3 digest of a file that must be there."""
    if not path.is_file():
        raise SlipwayError(f"{path}: missing")
    return hash_file(path)


def _packages(stages: list[StageRecord]) -> dict[str, str]:
    versions: dict[str, list[str]] = {}
    for stage in stages:
        for name, version in stage.sidecar.get("packages", {}).items():
            known = versions.setdefault(name, [])
            if version not in known:
                known.append(version)
    return {name: ", then ".join(known) for name, known in versions.items()}
