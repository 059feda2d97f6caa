# Expects: `config`, merged by Snakemake from config.yaml and --configfile.
# Provides: CONFIG (the typed config), wildcard constraints, and the functions that rules ask for inputs and params.
# Runs: in every process that reads the Snakefile; checks and writes only in the main one.
import json
import re
from functools import cache

from snakemake.logging import logger
from slipway.config.load import NAME, ConfigError, load_config, named, read_yaml
from slipway.config.paths import (
    BASE,
    FINAL,
    RESERVED_RUN_NAMES,
    STEP,
    ResultPaths,
    name_of_step,
)
from slipway.config.site import read_site
from slipway.errors import SlipwayError, disk_faults_explained
from slipway.manifest import FolderLock, fingerprint, write_if_changed
from slipway.preflight.cluster import check_cluster
from slipway.models.source import content_fingerprint, source_fingerprint
from slipway.resolve import data_sources, evaluation_sets, model_folder, plan
from slipway.surroundings import config_in_use, use_config

RESULTS = ResultPaths(Path("results"))


def trains_on_slurm():
    """Return whether the profile sends trainings to SLURM, as profiles/slurm does; a dry run counts too."""
    overwritten = workflow.resource_settings.overwrite_resources.get("train", {})
    return "executor" in overwritten and overwritten["executor"].raw == "slurm"


def read_config():
    """Return the typed config; in the main process after all static checks, leaving verl.yaml for every run."""
    if not workflow.is_main_process:
        # The main process has checked it, and its copy cannot change under a running job.
        return load_config(config_in_use())
    for path in workflow.configfiles:
        read_yaml(
            Path(path)
        )  # finds keys given twice, which Snakemake's reader does not
    checked = plan(config, RESULTS.root)
    if trains_on_slurm():
        problems = check_cluster(read_site(), checked.config.runs, logger.info)
        if problems:
            raise ConfigError(problems)
    copy = RESULTS.own / f"config-{fingerprint(config)[:16]}.yaml"
    # JSON is YAML; the scripts read this file, so that what ran is what was checked
    write_if_changed(copy, json.dumps(config, indent=2) + "\n")
    use_config(copy)
    checked.write_verl_configs()
    return checked.config


try:
    with disk_faults_explained():
        CONFIG = read_config()
except SlipwayError as error:
    raise WorkflowError(str(error)) from None

MAIN_LOCK = FolderLock(RESULTS.own / "main.lock", "snakemake in this folder")


wildcard_constraints:
    # any name: Snakemake copies this into every path and rule, which a list of a thousand names makes slow
    run=rf"(?!(?:{'|'.join(RESERVED_RUN_NAMES)})/){NAME.pattern}",
    model="|".join(map(re.escape, CONFIG.models)),
    data="|".join(map(re.escape, CONFIG.data)),
    step="[1-9][0-9]*",
    which=rf"{BASE}|{FINAL}|{STEP.pattern}",


def growing(amount):
    """Return a resource that grows with every attempt, for those who let Snakemake try again (--retries)."""
    return lambda wildcards, attempt: amount * attempt


def run_of(wildcards):
    """Return the settings of a run that rules are asked for; an error says which runs there are."""
    return named(CONFIG.runs, "runs", wildcards.run)


def model_source(wildcards):
    """Return the manifest of a model that Slipway makes; a user's own model is no input but a param."""
    return source_manifest(wildcards.model)


# What runs share is worked out once: Snakemake asks for it with every job of a sweep.
@cache
def source_manifest(name):
    """Return the manifest of a model of the config, if Slipway makes it; else nothing."""
    if CONFIG.models[name].demo is None:
        return []
    return str(RESULTS.hf_model(name) / "manifest.json")


@cache
def data_manifest(name):
    """Return the manifest of a data set."""
    return str(RESULTS.data(name) / "manifest.json")


@cache
def megatron_manifest(name):
    """Return the manifest of a converted model."""
    return str(RESULTS.megatron_model(name) / "manifest.json")


def as_param(settings):
    """Return settings as text whose form does not depend on the order of keys, by which Snakemake would rerun rules."""
    return json.dumps(settings, sort_keys=True)


def data_settings(wildcards):
    """Return what a data set is made from: its settings, and a fingerprint of each local source."""
    settings = CONFIG.data[wildcards.data].model_dump()
    sources = data_sources(wildcards.data, CONFIG)
    settings["fingerprints"] = [content_fingerprint(path) for path in sources]
    return as_param(settings)


def heldout_of_others(wildcards):
    """Return the manifests of the held-out problems that a data set is decontaminated against."""
    names = evaluation_sets(wildcards.data, CONFIG)
    return [RESULTS.held_out(name) / "manifest.json" for name in names]


def model_settings(wildcards):
    """Return what a model is made from: its settings, and a fingerprint of a folder of the user's."""
    return as_param(settings_of_model(wildcards.model))


@cache
def settings_of_model(name):
    """Return a model's settings as plain values, with the fingerprint of its folder where there is one."""
    model = CONFIG.models[name]
    settings = model.model_dump()
    if model.demo is None and Path(model.path).expanduser().is_dir():
        settings["source"] = source_fingerprint(model_folder(name, model, RESULTS))
    return settings


def evaluated_data(wildcards):
    """Return the manifests of the data sets that a run is evaluated on."""
    names = {CONFIG.evaluation[name].data for name in run_of(wildcards).evaluation}
    return [data_manifest(name) for name in sorted(names)]


def evaluated_model(wildcards):
    """Return the manifest of the model that an evaluation loads."""
    if wildcards.which == BASE:
        return run_source(wildcards)
    return RESULTS.trained_model(wildcards.run, wildcards.which) / "manifest.json"


def evaluation_settings(wildcards):
    """Return the settings of a run's evaluations, and of a base model that is no input."""
    run = run_of(wildcards)
    settings = {
        "evaluations": {
            name: CONFIG.evaluation[name].model_dump() for name in run.evaluation
        },
        "max_response_length": run.grpo.max_response_length,
        "device": run.device,
    }
    if wildcards.which == BASE:
        settings["model"] = settings_of_model(run.model)
    return as_param(settings)


def earlier_models(wildcards):
    """Return the manifests of a run's models of earlier steps, where it evaluates any."""
    names = map(name_of_step, run_of(wildcards).evaluated_steps)
    return [
        RESULTS.trained_model(wildcards.run, name) / "manifest.json" for name in names
    ]


def earlier_evaluations(wildcards):
    """Return the results of a run's models of earlier steps."""
    names = map(name_of_step, run_of(wildcards).evaluated_steps)
    return [RESULTS.evaluation_result(wildcards.run, name) for name in names]


def report_settings(wildcards):
    """Return what of a run's settings decides what the report says, beside its files."""
    run = run_of(wildcards)
    return as_param({"evaluation": run.evaluation, "select_on": run.select_on})


def run_data(wildcards):
    """Return the manifest of a run's training data."""
    return data_manifest(run_of(wildcards).data)


def run_model(wildcards):
    """Return the manifest of a run's converted model."""
    return megatron_manifest(run_of(wildcards).model)


def run_source(wildcards):
    """Return the manifest of a run's base model, if Slipway makes it."""
    return source_manifest(run_of(wildcards).model)
