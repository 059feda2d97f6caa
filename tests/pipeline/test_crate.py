"""The run's crate: accepted by the public validator, complete, and the same for the same run."""

import io
import json
import subprocess
from pathlib import Path

import pytest
import requests
import rocrate
import urllib3
from made_run import make_run
from requests.adapters import HTTPAdapter
from requests_cache import CachedSession
from rocrate_validator import services
from rocrate_validator.models import Severity, ValidationSettings

from slipway.config.load import load_config
from slipway.config.paths import ResultPaths
from slipway.manifest import hash_file
from slipway.report.source_archive import PROJECT
from slipway.report.stage import write_report

CONTEXT = "https://w3id.org/ro/crate/1.1/context"


class ShippedContext(HTTPAdapter):
    """Answers every request with the RO-Crate context that the package rocrate ships, without a network.

    That is the one of version 1.3, which moved the terms of Bioschemas; 1.1 has them where they were.
    """

    def send(self, request: requests.PreparedRequest, *args: object, **kwargs: object) -> requests.Response:
        shipped = (Path(rocrate.__path__[0]) / "data/ro-crate.jsonld").read_bytes()
        body = io.BytesIO(shipped.replace(b"https://bioschemas.org/terms/", b"https://bioschemas.org/"))
        headers = {"Content-Type": "application/ld+json"}
        answer = urllib3.HTTPResponse(body, headers, 200, preload_content=False, request_url=request.url)
        return self.build_response(request, answer)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    root = tmp_path / "results"
    write_report(ResultPaths(root), make_run(root))
    return root / "demo"


def problems(crate: Path, cache: Path) -> list[str]:
    """Return what the validator finds against the profile's requirements."""
    session = CachedSession(cache_name=str(cache), backend="sqlite", expire_after=-1)
    session.mount("https://w3id.org", ShippedContext())
    session.get(CONTEXT)
    settings = ValidationSettings(
        rocrate_uri=str(crate),
        profile_identifier="workflow-run-crate-0.5",
        requirement_severity=Severity.REQUIRED,
        offline=True,
        cache_path=cache,
    )
    return [str(issue.message) for issue in services.validate(settings).get_issues()]


def test_the_validator_accepts_the_crate(run: Path, tmp_path: Path) -> None:
    assert problems(run, tmp_path / "cache") == []


def test_the_validator_would_notice(run: Path, tmp_path: Path) -> None:
    (run / "Snakefile").unlink()
    assert problems(run, tmp_path / "cache")


def test_every_file_and_input_has_its_digest(run: Path) -> None:
    entities = {item["@id"]: item for item in json.loads((run / "ro-crate-metadata.json").read_text())["@graph"]}
    for part in entities["./"]["hasPart"]:
        path, entity = run / part["@id"], entities[part["@id"]]
        assert entity["identifier"] == f"blake3:{hash_file(path)}"
        assert int(entity["contentSize"]) == path.stat().st_size
    values = {entities[item["@id"]].get("name") for item in entities["#run"]["object"]}
    assert {"data sums/train.parquet", "data sums/heldout.parquet", "base weights"} <= values


def test_the_source_in_the_crate_is_the_project(run: Path, tmp_path: Path) -> None:
    # by the program, as docs/reproduce.md says it: Debian's Python 3.11.2 has no `filter` for tarfile's extraction yet
    subprocess.run(["tar", "-xzf", run / "source.tar.gz", "-C", tmp_path], check=True)
    unpacked = tmp_path / "slipway"
    tracked = subprocess.run(["git", "-C", PROJECT, "ls-files"], capture_output=True, text=True, check=True).stdout
    assert {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_symlink() or path.is_file()} == {
        name for name in tracked.split() if (PROJECT / name).exists()
    }
    assert (unpacked / "slurm").is_symlink()
    assert (unpacked / "profiles/slurm/bin/sacct").stat().st_mode & 0o100
    # the run's own config, laid over the project's, is whole
    load_config(unpacked / "config.yaml", run / "config.yaml")


def test_the_same_run_gives_the_same_crate(tmp_path: Path) -> None:
    root = tmp_path / "results"
    settings = make_run(root)
    names = ("ro-crate-metadata.json", "source.tar.gz", "Snakefile")
    written = []
    for _ in range(2):
        write_report(ResultPaths(root), settings)
        written.append([(root / "demo" / name).read_bytes() for name in names])
    assert written[0] == written[1]
