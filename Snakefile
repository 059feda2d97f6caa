# Slipway: GRPO post-training from a Hugging Face checkpoint to a report. `snakemake --profile profiles/local`
# runs config.yaml on this machine; README.md says what else there is.
import gc
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("9.13")

# A sweep's jobs are a million objects that stay to the end. Python would search them for garbage 1,500 times, a tenth
# of a dry run; searched once in a hundred thousand new ones, they cost a quarter of that, and no more memory.
gc.set_threshold(100_000)

# Rules and scripts import the package from this clone, installed or not.
PACKAGE_ROOT = Path(workflow.basedir) / "workflow"
sys.path.insert(0, str(PACKAGE_ROOT))
from slipway.surroundings import prepare_environment

prepare_environment(PACKAGE_ROOT)


configfile: "config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/preflight.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        expand(
            "results/{run}/{file}",
            run=CONFIG.runs,
            file=("report.html", "metrics.json"),
        ),
        "results/compare.html",


onstart:
    try:
        with disk_faults_explained():
            MAIN_LOCK.acquire()
    except SlipwayError as error:
        raise WorkflowError(str(error)) from None


onsuccess:
    MAIN_LOCK.release()


onerror:
    # A failed run still gets its page.
    for name in CONFIG.runs:
        made = (
            Path(f"results/{name}") / part
            for part in ("train/manifest.json", "report.html")
        )
        if not all(path.exists() for path in made):
            shell(
                'python -P scripts/report.py "$SLIPWAY_CONFIG" {name:q} --partial || true'
            )
    shell('python -P scripts/status.py "$SLIPWAY_CONFIG" >&2 || true')
    MAIN_LOCK.release()
