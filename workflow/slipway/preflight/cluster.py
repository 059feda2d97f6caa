"""Does the cluster have what the site file names, and do the runs fit into it? Asks SLURM; submits nothing."""

import getpass
from collections.abc import Mapping
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


def check_cluster(site: Site, runs: Mapping[str, Run]) -> list[Problem]:
    """Return every fault of the site file and of the runs that this cluster would refuse, or leave waiting for ever."""
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
    return problems


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
