"""A stranger repeats a run from its folder alone, as docs/reproduce.md says, and gets the same."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_chain import TRAINING_TIMEOUT, Clone

pytestmark = [pytest.mark.training, pytest.mark.full, pytest.mark.timeout(2400)]


def test_the_run_is_repeated_from_its_folder(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    status, said = clone.run("--", "results/demo/report.html")
    assert status == 0, said
    given = shutil.move(tmp_path / "results/demo", tmp_path / "given")
    shutil.rmtree(tmp_path / "results")

    subprocess.run(["tar", "-xzf", given / "source.tar.gz", "-C", given], check=True)
    source = given / "slipway"
    command = [
        "snakemake",
        "--profile",
        "profiles/local",
        "--configfile",
        "../config.yaml",
        "--",
        "results/demo/report.html",
    ]
    repeated = subprocess.run(
        command,
        cwd=source,
        env=os.environ | {"PYTHONPATH": str(source / "workflow")},
        capture_output=True,
        text=True,
        timeout=TRAINING_TIMEOUT,
    )
    print(repeated.stdout[-2000:], repeated.stderr[-2000:], file=sys.stderr)
    assert repeated.returncode == 0

    again = source / "results/demo"
    # with the digests of the weights, of the model's files and of the samples
    for name in ("eval/base.json", "eval/final.json"):
        assert (again / name).read_bytes() == (given / name).read_bytes(), name
    figures, before = (json.loads((folder / "metrics.json").read_text()) for folder in (again, given))
    times = {"cpu_hours": 0, "cpu_hours_held": 0}
    assert figures | times == before | times
    assert "config.yaml -- results/demo/report.html" in (given / "report.html").read_text()
