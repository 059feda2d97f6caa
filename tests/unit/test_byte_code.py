"""Byte code of packages whose folder may not hold any."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.launch import byte_code

FORBIDDEN, FOLDER = byte_code.FORBIDDEN, byte_code.FOLDER


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of a training that was never imported."""
    module = tmp_path / "site/heavy_package.py"
    module.parent.mkdir()
    module.write_text("VALUE = 1\n")
    monkeypatch.setattr(byte_code, "PACKAGES", ("heavy_package",))
    monkeypatch.syspath_prepend(module.parent)
    return module


def imported(environment: dict[str, str], module: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", "import heavy_package"],
        env=os.environ | {"PYTHONPATH": str(module.parent)} | environment,
        check=True,
    )


def test_byte_code_that_an_image_forbids_is_kept_elsewhere(package, tmp_path):
    environment = {FORBIDDEN: "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    decided = byte_code.environment_for(environment)
    imported(environment | decided, package)
    assert not list(package.parent.rglob("*.pyc"))
    assert list((tmp_path / "cache/slipway/byte-code").rglob("heavy_package*.pyc"))


def test_where_python_keeps_byte_code_nothing_changes(package):
    assert byte_code.environment_for({}) == {}
    imported({FORBIDDEN: ""}, package)
    assert byte_code.environment_for({FORBIDDEN: "1"}) == {}


def test_nothing_is_promised_of_a_cache_that_cannot_be_written(package, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    assert byte_code.environment_for({FORBIDDEN: "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}) == {}


def test_a_folder_of_the_users_stays(package):
    assert byte_code.environment_for({FORBIDDEN: "1", FOLDER: "/mine"}) == {}


def test_packages_on_a_file_system_that_cannot_be_written_count(package, tmp_path, monkeypatch):
    # root may write to every folder of this machine
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).is_relative_to(tmp_path / "cache"))
    assert FOLDER in byte_code.environment_for({"XDG_CACHE_HOME": str(tmp_path / "cache")})
