"""The run as an RO-Crate 1.1: which files there are, from which stages, with their digests.

Claims no profile beyond RO-Crate itself: the Workflow Run profiles want more than is recorded today.
"""

from pathlib import Path
from typing import Any

from slipway.manifest import hash_file
from slipway.report.provenance_view import Provenance, StageRecord

FILES = {
    "metrics.json": "application/json",
    "summary.md": "text/markdown",
    "README.md": "text/markdown",
    "config.yaml": "application/yaml",
    "verl.yaml": "application/yaml",
    "train/metrics.jsonl": "application/jsonl",
    "eval/base.json": "application/json",
    "eval/final.json": "application/json",
}


def describe(run: str, provenance: Provenance, folder: Path) -> dict[str, Any]:
    """Return the content of ro-crate-metadata.json in the run's `folder`."""
    files = [_file(folder, name, kind) for name, kind in FILES.items() if (folder / name).is_file()]
    actions = [_action(number, stage) for number, stage in enumerate(provenance.stages, start=1)]
    ended = max((stage.sidecar.get("ended", "") for stage in provenance.stages), default="")
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Slipway run {run}",
        "description": f"GRPO training, evaluation and report. Repeat it with: {provenance.command}",
        "datePublished": ended,
        "license": "https://www.apache.org/licenses/LICENSE-2.0",
        "hasPart": [{"@id": entity["@id"]} for entity in files],
        "mentions": [{"@id": entity["@id"]} for entity in actions],
    }
    descriptor = {
        "@id": "ro-crate-metadata.json",
        "@type": "CreativeWork",
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
        "about": {"@id": "./"},
    }
    software = [
        {"@id": f"#{name}", "@type": "SoftwareApplication", "name": name, "softwareVersion": version}
        for name, version in provenance.packages.items()
    ]
    return {
        "@context": "https://w3id.org/ro/crate/1.1/context",
        "@graph": [descriptor, root, *files, *actions, *software],
    }


def _file(folder: Path, name: str, kind: str) -> dict[str, Any]:
    path = folder / name
    return {
        "@id": name,
        "@type": "File",
        "encodingFormat": kind,
        "contentSize": str(path.stat().st_size),
        "identifier": f"blake3:{hash_file(path)}",
    }


def _action(number: int, stage: StageRecord) -> dict[str, Any]:
    return {
        "@id": f"#stage-{number}",
        "@type": "CreateAction",
        "name": stage.stage,
        "startTime": stage.sidecar.get("started"),
        "endTime": stage.sidecar.get("ended"),
        "description": f"{stage.path}, digest blake3:{stage.digest}, code {stage.commit}",
    }
