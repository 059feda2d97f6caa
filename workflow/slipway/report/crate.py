"""The run as a Workflow Run RO-Crate: files, stages and inputs with their digests.

Profiles: Workflow Run Crate 0.5 (https://w3id.org/ro/wfrun/workflow/0.5) and those it is based on.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocrate.model import ContextEntity, SoftwareApplication
from rocrate.rocrate import ROCrate

from slipway.manifest import hash_file
from slipway.report.provenance_view import Provenance, StageRecord
from slipway.report.source_archive import ARCHIVE, SNAKEFILE

FILES = {
    "metrics.json": "application/json",
    "summary.md": "text/markdown",
    "README.md": "text/markdown",
    "config.yaml": "application/yaml",
    "verl.yaml": "application/yaml",
    "train/metrics.jsonl": "application/jsonl",
    "eval/base.json": "application/json",
    ARCHIVE: "application/gzip",
}
INPUTS = ("config.yaml", "verl.yaml", ARCHIVE)
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
LICENSE = "https://spdx.org/licenses/Apache-2.0"


def describe(run: str, provenance: Provenance, folder: Path, trained: Sequence[str]) -> dict[str, Any]:
    """Return the content of ro-crate-metadata.json in the run's `folder`; equal runs give equal content.

    `trained` names the evaluated models besides the base.
    """
    crate = ROCrate(version="1.1")
    crate.name = f"Slipway run {run}"
    crate.description = f"GRPO training, evaluation and report. Repeat it with: {provenance.command}"
    started = min((stage.sidecar.get("started", "") for stage in provenance.stages), default="")
    ended = max((stage.sidecar.get("ended", "") for stage in provenance.stages), default="")
    crate.root_dataset["datePublished"] = ended
    crate.license = _add(crate, LICENSE, "CreativeWork", name="Apache License 2.0")
    crate.root_dataset["conformsTo"] = [
        _add(crate, url, "CreativeWork", name=name, version=url.rpartition("/")[2]) for url, name in PROFILES.items()
    ]
    workflow = crate.add_workflow(
        folder / SNAKEFILE,
        SNAKEFILE,
        main=True,
        lang="snakemake",
        properties=_file(folder, SNAKEFILE) | {"name": "Slipway"},
    )
    workflow["license"] = crate.license
    files = {
        name: crate.add_file(folder / name, name, properties=_file(folder, name) | {"encodingFormat": kind})
        for name, kind in (FILES | {f"eval/{which}.json": "application/json" for which in trained}).items()
        if (folder / name).is_file()
    }
    inputs = [
        _add(crate, f"#input-{number}", "PropertyValue", name=name, value=f"blake3:{digest}")
        for number, (name, digest) in enumerate(provenance.hashes.items(), start=1)
    ]
    packages = [
        crate.add(SoftwareApplication(crate, f"#{name}", {"name": name, "softwareVersion": version} | _address(name)))
        for name, version in provenance.packages.items()
    ]
    workflow["softwareRequirements"] = packages
    stages = [_stage(crate, number, stage) for number, stage in enumerate(provenance.stages, start=1)]
    whole = crate.add_action(
        workflow,
        "#run",
        object=[*(files[name] for name in INPUTS if name in files), *inputs],
        result=[entity for name, entity in files.items() if name not in INPUTS],
        properties={
            "name": f"run {run}",
            "startTime": started,
            "endTime": ended,
            "actionStatus": "http://schema.org/CompletedActionStatus",
        },
    )
    crate.root_dataset["mentions"] = [whole, *stages]
    return _as_json(crate)


def _stage(crate: ROCrate, number: int, stage: StageRecord) -> ContextEntity:
    script = crate.get(f"#scripts/{stage.stage}.py") or crate.add(
        SoftwareApplication(crate, f"#scripts/{stage.stage}.py", {"name": f"scripts/{stage.stage}.py"})
    )
    return _add(
        crate,
        f"#stage-{number}",
        "CreateAction",
        name=stage.stage,
        instrument=script,
        result=_add(crate, f"#product-{number}", "PropertyValue", name=stage.path, value=f"blake3:{stage.digest}"),
        startTime=stage.sidecar.get("started"),
        endTime=stage.sidecar.get("ended"),
        description=f"code {stage.commit}",
    )


def _add(crate: ROCrate, identifier: str, kind: str, **properties: Any) -> ContextEntity:
    entity = crate.add(ContextEntity(crate, identifier, {"@type": kind}))
    for name, value in properties.items():
        entity[name] = value
    return entity


def _address(package: str) -> dict[str, str]:
    """Return where a package comes from; Slipway itself lies beside the crate's metadata."""
    return {} if package == "slipway" else {"url": f"https://pypi.org/project/{package}/"}


def _file(folder: Path, name: str) -> dict[str, str]:
    path = folder / name
    return {"contentSize": str(path.stat().st_size), "identifier": f"blake3:{hash_file(path)}"}


def _as_json(crate: ROCrate) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        crate.metadata.write(folder)
        content: dict[str, Any] = json.loads((Path(folder) / "ro-crate-metadata.json").read_text(encoding="utf-8"))
    return content
