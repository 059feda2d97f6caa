"""What Snakemake plans when something of a finished run is lost: dry runs over a results folder written by hand."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from made_run import make_run

from slipway.manifest import write_json

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with a finished run `demo`, all of whose files are equally old."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("Snakefile", "config.yaml", "workflow", "scripts", "profiles", "envs"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    make_run(folder / "results")
    for product in ("preflight.json", "report.html", "metrics.json"):
        write_json(folder / "results/demo" / product, {})
    (folder / "results/compare.html").write_text("")
    planned(folder)  # writes verl.yaml
    for path in (folder / "results").rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert planned(folder) == set()
    return folder


def planned(clone: Path) -> set[str]:
    """Return the rules that a dry run would start."""
    command = [sys.executable, "-m", "snakemake", "--profile", "profiles/local", "-n"]
    result = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    said = result.stdout + result.stderr
    assert result.returncode == 0, said
    return set(re.findall(r"^Job \d+: (\w+)", said, re.MULTILINE))


@contextmanager
def without(*paths: Path) -> Iterator[None]:
    """Hide files for a while."""
    for path in paths:
        path.rename(path.with_name(f"{path.name}.hidden"))
    yield
    for path in paths:
        path.with_name(f"{path.name}.hidden").rename(path)


@pytest.mark.parametrize("lost", ["report.html", "metrics.json"])
def test_a_lost_part_of_the_report_is_made_again(clone: Path, lost: str) -> None:
    with without(clone / "results/demo" / lost):
        assert planned(clone) == {"report", "compare"}


def test_a_report_brings_back_the_manifests_that_it_reads(clone: Path) -> None:
    results = clone / "results"
    lost = [results / name / "manifest.json" for name in ("data/sums", "models/small/hf", "models/small/megatron")]
    with without(*lost, results / "demo/report.html"):
        assert {"prepare_data", "make_demo_model", "convert_megatron", "report", "compare"} <= planned(clone)
