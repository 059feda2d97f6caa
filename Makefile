# `make demo` and `make test` do all their own set-up: Python 3.11, make, gcc and git are enough.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Nothing here talks to a hub: the demo and the tests make their own model and data.
export HF_HUB_OFFLINE := 1
export RAY_USAGE_STATS_ENABLED := 0

CASES ?= 2000
SEED ?= 20261201

.PHONY: demo demo-code demo-slurm differential test test-full gpu-test check unit format lock schema screenshots clean help

help:
	@echo "make demo       train, evaluate and report a small model on this machine's CPU (results/demo/report.html)"
	@echo "make demo-code  the same on little programs, which are scored by unit tests in a sandbox (bubblewrap)"
	@echo "make demo-slurm the same on a SLURM cluster of two nodes that it brings up on this machine (root; Debian's SLURM)"
	@echo "make test       everything that CI runs"
	@echo "make differential  compare preflight's verdict with verl's and Megatron-core's own on random configurations"
	@echo "make gpu-test   tests on a CUDA machine, with the python3 of its stack (docs/gpu.md)"
	@echo "make screenshots renew the pictures of the report in docs/ (needs Chromium and a finished demo)"
	@echo "make check      format, lint, types and unit tests, in under two minutes"

demo: $(INSTALLED)
	@snakemake --profile profiles/local
	@python -P scripts/report.py config.yaml demo --verdict

# Problems first: they are the data's source, which the config has to find.
demo-code: $(INSTALLED)
	@python -P -m slipway.data.little_programs results/little-programs.jsonl
	@snakemake --profile profiles/local --configfile workflow/demo-code.yaml
	@python -P scripts/report.py config.yaml demo-code --verdict

demo-slurm: $(INSTALLED)
	@python tests/slurm/sandbox up
	@status=0; python tests/slurm/sandbox run snakemake --profile slurm || status=$$?; \
	  python tests/slurm/sandbox down; exit $$status
	@python -P scripts/report.py config.yaml demo --verdict

check: $(INSTALLED)
	ruff format --check .
	ruff check .
	snakefmt --check Snakefile workflow/rules
	mypy
	snakemake --lint --snakefile Snakefile --configfile config.yaml
	python -m pytest -q -n 2 tests/unit tests/differential/test_agreement.py::test_thirty_random_cases_get_the_same_answer

test: check
	bash tests/run.sh

# With the tests that are too long for CI; docs/measurements has the last result.
test-full: check
	bash tests/run.sh full

# Needs no .venv: a CUDA machine has its own interpreter and stack. A few minutes.
gpu-test:
	@python3 -c "import torch; assert torch.cuda.is_available(), 'gpu-test: torch sees no CUDA device'"
	PYTHONPATH="$(CURDIR)/workflow:$$PYTHONPATH" python3 -m pytest tests/gpu

# Slipway's verdict against that of verl and Megatron-core themselves, on random configurations.
differential: $(INSTALLED)
	mkdir -p results
	PYTHONPATH=tests python -W ignore -m differential --cases $(CASES) --seed $(SEED) --out results/differential.json

format: $(INSTALLED)
	ruff format .
	ruff check --fix .
	snakefmt Snakefile workflow/rules

schema: $(INSTALLED)
	python -m slipway.config.json_schema > workflow/schemas/config.schema.json

# The pictures in docs/report/, of a finished demo; needs Chromium.
screenshots: $(INSTALLED)
	python tests/pipeline/browser.py results/demo/report.html docs/report

lock:
	$(PYTHON) envs/lock.py

clean:
	rm -rf $(VENV) results .snakemake

$(INSTALLED): envs/requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@
