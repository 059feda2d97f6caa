"""docs/preflight.md has every rule there is, and the JSON that is printed follows its schema."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from slipway.preflight.rules.catalogue import as_markdown, catalogue

ROOT = Path(__file__).resolve().parents[2]
PREFLIGHT = ROOT / "workflow/slipway/preflight"


def test_the_documentation_has_the_catalogue():
    assert as_markdown() in (ROOT / "docs/preflight.md").read_text()


def test_every_rule_that_is_used_is_in_the_catalogue_and_no_other():
    used = {
        name
        for file in PREFLIGHT.rglob("*.py")
        for name in re.findall(r'"((?:R|S)\d+|verl)"', file.read_text())
        if name == "verl" or file.name != "stage.py"
    }
    assert used == set(catalogue())


def test_the_sources_of_the_rules_are_there():
    from slipway.config.verl import config_folder

    site_packages = config_folder().parents[2]
    for name, rule in catalogue().items():
        folder = ""
        for source in rule.source.split(", "):
            path = source.partition(":")[0]
            if path.startswith(("vllm/", "docs/")) or ("/" not in path and not path.endswith(".py")):
                continue  # not installed here, or a word
            # a later name in a list may be relative to the first one's package
            candidates = [path, *(f"{folder[: at + 1]}{path}" for at, letter in enumerate(folder) if letter == "/")]
            assert any((site_packages / candidate).exists() for candidate in candidates), (name, source)
            folder = next(candidate for candidate in candidates if (site_packages / candidate).exists())


@pytest.mark.parametrize(
    ("text", "status", "rules"),
    [
        ("model_engine=megatron algorithm.adv_estimator=gpro +algorithm.group_size=5 --dry-run", 1, {"R36", "S12"}),
        ("@nowhere.sh", 1, None),
        ("ls -l", 1, None),
    ],
)
def test_the_command_line_judges_somebodys_launch(text, status, rules):
    command = [sys.executable, "-P", str(ROOT / "scripts/preflight.py"), "--json", "--verl-args", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    if rules is None:
        assert "--verl-args" in done.stderr
        return
    findings = json.loads(done.stdout)
    jsonschema.validate(findings, json.loads((ROOT / "workflow/schemas/findings.schema.json").read_text()))
    assert rules <= {finding["rule"] for finding in findings}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a config, or give --verl-args"),
        (["config.yaml", "--model", "x"], "--model x: is for --verl-args"),
        (["config.yaml", "--gpu", "H100-80GB"], "--gpu H100-80GB: is for --verl-args"),
        (["config.yaml", "--verl-args", "model_engine=megatron"], "config.yaml: --verl-args judges a launch without"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments, words):
    command = [sys.executable, "-P", str(ROOT / "scripts/preflight.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 2
    assert words in done.stderr
