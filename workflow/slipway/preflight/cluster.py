"""Does the cluster have what the site file names, and do the runs fit into it? Asks SLURM; submits nothing."""

import getpass
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slipway import slurm
from slipway.config.load import Problem
from slipway.config.schema import Run
from slipway.config.site import SITE_FILE, Site


@dataclass(frozen=True)
class Partition:
    """A partition as sinfo describes it: minutes of its longest job (None: no limit), its nodes, their GPUs."""

    name: str
    is_default: bool
    minutes: float | None
    nodes: int
    gres: str


def check_cluster(site: Site, runs: Mapping[str, Run], tell: Callable[[str], None]) -> list[Problem]:
    """Return every fault of the site file and of the runs that this cluster would refuse, or leave waiting for ever.

    `tell` gets a line about when each training job is expected to start.
    """
    try:
        partitions = _partitions()
        problems = [
            *_unknown_partition("cpu_partition", site.cpu_partition, partitions),
            *_unknown_partition("gpu_partition", site.gpu_partition, partitions),
            *_unknown_account(site.account),
        ]
    except slurm.SlurmUnavailableError as error:
        return [Problem("profiles/slurm", None, f"SLURM does not answer here: {error}.", "Use a login node.")]
    training = next((part for part in partitions if part.name == site.gpu_partition), None) or next(
        (part for part in partitions if part.is_default and site.gpu_partition is None), None
    )
    if training is None:
        return problems
    if site.gpu_type is not None and f":{site.gpu_type}:" not in training.gres:
        problems.append(
            Problem(
                f"{SITE_FILE}: gpu_type",
                site.gpu_type,
                f"partition {training.name} has no such GPU.",
                f"It has: {training.gres or 'none'}.",
            )
        )
    for name, run in runs.items():
        problems += _does_not_fit(name, run, training)
    return problems or _refused(site, runs, tell)


def _refused(site: Site, runs: Mapping[str, Run], tell: Callable[[str], None]) -> list[Problem]:
    """Ask SLURM whether it would take each training job, and tell when it expects to start it; submits nothing."""
    problems = []
    asked: dict[tuple[str, ...], slurm.Trial] = {}
    for name, run in runs.items():
        options = _options(site, run)
        if options not in asked:
            asked[options] = slurm.try_submission(*options)
        trial = asked[options]
        if not trial.accepted:
            key, value = f"runs.{name}", f"{run.nodes} node(s) x {run.gpus_per_node}"
            problems.append(Problem(key, value, f"SLURM would refuse the training job: {trial.words}.", _REMEDY))
        elif trial.words:
            tell(f"train {name}: SLURM says of its job: {trial.words}")
    return problems


_REMEDY = f"nodes, gpus_per_node and runtime_minutes come from the run, the rest from {SITE_FILE}."


def _options(site: Site, run: Run) -> tuple[str, ...]:
    """Return sbatch's options for a run's training job, as launch/slurm_job.py asks for it."""
    gpus = f"{site.gpu_type}:{run.gpus_per_node}" if site.gpu_type else str(run.gpus_per_node)
    options: dict[str, object] = {
        "nodes": run.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": site.cpus_per_gpu * run.gpus_per_node,
        "mem": f"{site.memory_gib_per_gpu * run.gpus_per_node}G",
        "time": run.runtime_minutes,
        "gpus-per-node": gpus if run.device == "cuda" else None,
        "partition": site.gpu_partition,
        "account": site.account,
        "qos": site.qos,
        "reservation": site.reservation,
        "exclude": site.exclude,
    } | dict(site.sbatch)
    return tuple(
        f"--{key}" if value is True else f"--{key}={value}"
        for key, value in options.items()
        if value is not None and value is not False
    )


def _partitions() -> list[Partition]:
    """Return the partitions; one whose nodes differ is one entry with all their GPUs."""
    found: dict[str, Partition] = {}
    for line in slurm.ask("sinfo", "--noheader", "--format=%P|%l|%D|%G").splitlines():
        starred, limit, nodes, gres = line.strip().split("|")
        name, known = starred.rstrip("*"), found.get(starred.rstrip("*"))
        gres = "" if gres == "(null)" else gres
        found[name] = Partition(
            name,
            starred.endswith("*"),
            _minutes(limit),
            int(nodes) + (known.nodes if known else 0),
            ",".join(filter(None, [known.gres if known else "", gres])),
        )
    return list(found.values())


def _minutes(limit: str) -> float | None:
    """Return a time of SLURM's, [days-]hours:minutes:seconds or minutes:seconds, in minutes."""
    if limit in ("infinite", "UNLIMITED", "n/a"):
        return None
    days, _, clock = limit.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    hours, minutes, seconds = [0] * (3 - len(parts)) + parts
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60


def _unknown_partition(key: str, name: str | None, partitions: list[Partition]) -> list[Problem]:
    names = [part.name for part in partitions]
    if name is None or name in names:
        return []
    return [Problem(f"{SITE_FILE}: {key}", name, "no such partition.", f"There are: {', '.join(names)}.")]


def _unknown_account(account: str | None) -> list[Problem]:
    if account is None:
        return []
    user = getpass.getuser()
    query = ("sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user}", "format=account")
    try:
        accounts = sorted(set(slurm.ask(*query).split()))
    except slurm.SlurmUnavailableError:
        return []  # accounting is down or not used here; sbatch will tell
    if not accounts or account in accounts:
        return []
    return [
        Problem(f"{SITE_FILE}: account", account, f"not an account of user {user}.", f"Yours: {', '.join(accounts)}.")
    ]


def _does_not_fit(name: str, run: Run, partition: Partition) -> list[Problem]:
    problems = []
    if run.nodes > partition.nodes:
        problems.append(
            Problem(f"runs.{name}.nodes", run.nodes, f"partition {partition.name} has {partition.nodes} nodes.")
        )
    if partition.minutes is not None and run.runtime_minutes > partition.minutes:
        problems.append(
            Problem(
                f"runs.{name}.runtime_minutes",
                run.runtime_minutes,
                f"partition {partition.name} ends jobs after {partition.minutes:.0f} minutes.",
                "A shorter limit is no loss: the job saves in time, and continues as often as it takes.",
            )
        )
    return problems
