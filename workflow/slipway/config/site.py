"""A cluster's own names: `profiles/slurm/site.yaml`, which is not part of the project.

The profile's resources and the training job both come from it.
"""

from pathlib import Path

from pydantic import Field, ValidationError

from slipway.config.load import ConfigError, Problem, read_yaml, unknown_key
from slipway.config.schema import Positive, Settings

SITE_FILE = Path("profiles/slurm/site.yaml")
EXAMPLE = SITE_FILE.with_name("site.example.yaml")


class Site(Settings):
    """What sbatch has to be told on this cluster; every key may be left out."""

    account: str | None = Field(None, description="account that jobs are charged to; null: the user's default")
    cpu_partition: str | None = Field(None, description="partition of jobs without GPUs; null: the default one")
    gpu_partition: str | None = Field(None, description="partition of training and GPU evaluation; null: the default")
    qos: str | None = Field(None, description="quality of service of every job; null: the default")
    gpu_type: str | None = Field(None, description="type of GPU as in `sinfo -o %G`, e.g. h200; null: any")
    cpus_per_gpu: Positive = Field(8, description="CPU cores of a training job for each of its GPUs")
    memory_gib_per_gpu: Positive = Field(64, description="host memory of a training job for each of its GPUs, GiB")
    setup: list[str] = Field([], description="shell lines run before the training's Python, e.g. `module load cuda`")
    container: str | None = Field(None, description="image for the training's srun, where the cluster has pyxis")
    reservation: str | None = Field(None, description="reservation of the training job")
    exclude: str | None = Field(None, description="nodes that the training job must not use, e.g. n[3,7]")
    sbatch: dict[str, str | int | bool] = Field({}, description="further sbatch options of the training job")


def read_site(path: Path = SITE_FILE) -> Site:
    """Read the site file; without one, everything is the cluster's default. Raises `ConfigError` with every fault."""
    if not path.is_file():
        return Site.model_validate({})
    raw = read_yaml(path, expected=Site.model_fields) if path.read_text(encoding="utf-8").strip() else {}
    try:
        return Site.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(_problem(path, fault) for fault in error.errors()) from None


def default_resources(site: Site) -> dict[str, str]:
    """Return what every job of the SLURM executor plugin is told, in its resources' names."""
    named = {"slurm_account": site.account, "slurm_partition": site.cpu_partition, "qos": site.qos}
    return {resource: value for resource, value in named.items() if value is not None}


def _problem(path: Path, fault: object) -> Problem:
    location = ".".join(map(str, fault["loc"]))  # type: ignore[index]
    value, message = fault["input"], fault["msg"]  # type: ignore[index]
    if fault["type"] == "extra_forbidden":  # type: ignore[index]
        found = unknown_key(location, value, Site.model_fields)
        return Problem(f"{path}: {found.key}", value, found.why, f"{found.remedy} {EXAMPLE} explains every key.")
    return Problem(f"{path}: {location}", value, message.removeprefix("Input should be ") + " is expected.")
