"""Files that are generated, or that describe the code, do not drift from it."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.config import schema
from slipway.config.json_schema import json_schema
from slipway.config.load import load_config, overlay, read_yaml
from slipway.resolve import plan

ROOT = Path(__file__).resolve().parents[2]


def lock_module():
    spec = importlib.util.spec_from_file_location("lock", ROOT / "envs" / "lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_json_schema_is_current():
    assert (ROOT / "workflow/schemas/config.schema.json").read_text() == json_schema(), "run `make schema`"


def test_the_conda_files_are_those_of_the_lock():
    lock = lock_module()
    for name in lock.CONDA_FILES:
        assert (ROOT / "envs" / name).read_text() == lock.conda_file(name, lock.LOCK.read_text()), "python envs/lock.py"


def test_the_lock_has_what_is_required():
    pins = {line.split("==")[0].lower().replace("_", "-") for line in lock_module().LOCK.read_text().splitlines()}
    for file in ("requirements.txt", "requirements-dev.txt"):
        for line in (ROOT / "envs" / file).read_text().splitlines():
            if line and not line.startswith("#"):
                name = re.split(r"[\[=<>]", line)[0].lower().replace("_", "-")
                assert name in pins, f"{name} of {file} is not in requirements.lock; run `make lock`"


def test_the_demo_config_is_good_and_names_every_key():
    config = load_config(ROOT / "config.yaml")
    assert config.runs["demo"].steps >= 40
    assert config.runs["demo"].grpo.samples_per_prompt >= 8
    assert config.data["sums"].heldout >= 256
    words = set(re.findall(r"[a-z_]+(?=:)", (ROOT / "config.yaml").read_text()))
    for section in (
        schema.DemoModel,
        schema.Model,
        schema.Data,
        schema.Evaluation,
        schema.Parallel,
        schema.Grpo,
        schema.Checkpoints,
    ):
        assert set(section.model_fields) <= words, set(section.model_fields) - words
    assert set(schema.Run.model_fields) <= words


@pytest.mark.parametrize("preset", sorted((ROOT / "workflow/presets").glob("*.yaml")), ids=lambda path: path.stem)
def test_presets_are_sound_before_anything_is_fetched(preset, tmp_path):
    checked = plan(overlay(read_yaml(ROOT / "config.yaml"), read_yaml(preset)), tmp_path)
    assert checked.runs
    for run in checked.runs.values():
        assert run.findings == ()
        assert run.run.device == "cuda"
    assert f"--configfile {preset.relative_to(ROOT)} -n" in preset.read_text()


def test_there_are_presets():
    assert len(list((ROOT / "workflow/presets").glob("*.yaml"))) >= 3


# status and plan only look; every other script is a rule's.
SCRIPTS = sorted(path for path in (ROOT / "scripts").glob("*.py") if path.stem not in ("status", "plan"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_belongs_to_a_rule_and_has_help(script):
    rules = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    assert f"rule {script.stem}:" in rules
    assert f"scripts/{script.name}" in rules
    result = subprocess.run(
        [sys.executable, "-P", script, "--help"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "workflow")},
    )
    assert result.returncode == 0, result.stderr
    assert "usage" in result.stdout


def test_nothing_in_the_package_imports_snakemake():
    for path in (ROOT / "workflow/slipway").rglob("*.py"):
        assert not re.search(r"^\s*(import|from) snakemake", path.read_text(), re.MULTILINE), path


ROOMS = {
    "config",
    "manifest",
    "models",
    "data",
    "rewards",
    "convert",
    "preflight",
    "launch",
    "cpu",
    "evaluate",
    "report",
}
SHARED = {"config", "manifest", "models"}
SCORERS = {"data", "evaluate", "preflight"}


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_rooms_import_only_what_they_may(room):
    allowed = {room, *SHARED} | ({"rewards"} if room in SCORERS else set())
    for path in (ROOT / "workflow/slipway" / room).rglob("*.py"):
        for imported in re.findall(r"^\s*(?:from|import) slipway\.(\w+)", path.read_text(), re.MULTILINE):
            assert imported not in ROOMS - allowed, f"{path}: imports slipway.{imported}"


@pytest.mark.parametrize("script", [path for path in SCRIPTS if path.stem != "compare"], ids=lambda path: path.stem)
def test_a_name_that_the_config_does_not_have_is_one_clear_error(script, tmp_path):
    arguments = ["nosuch", "base"] if script.stem == "evaluate" else ["nosuch"]
    result = subprocess.run(
        [sys.executable, "-P", script, ROOT / "config.yaml", *arguments, "--results", tmp_path],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "workflow")},
    )
    assert result.returncode == 1
    assert "the config has no 'nosuch' under" in result.stderr
    assert "Traceback" not in result.stderr
