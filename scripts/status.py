"""Show how far every run is: stage, job, step, reward, time left, last checkpoint, and what to do next."""

import argparse
import sys
from dataclasses import astuple, fields
from pathlib import Path

from slipway.cli import run
from slipway.config.load import load_config
from slipway.config.paths import ResultPaths
from slipway.errors import SlipwayError
from slipway.launch.status import Status, status_of


def main() -> None:
    """Read the command line and print one line a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "config", type=Path, nargs="?", help="the YAML config; without it, the one that Snakemake used last"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of all results (%(default)s)")
    arguments = parser.parse_args()
    paths = ResultPaths(arguments.results)
    config = load_config(arguments.config or _latest_config(paths))
    rows = [tuple(field.name for field in fields(Status))]
    rows += [astuple(status_of(name, settings, paths)) for name, settings in config.runs.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width)
        sys.stdout.write(line.rstrip() + "\n")


def _latest_config(paths: ResultPaths) -> Path:
    used = sorted(paths.own.glob("config-*.yaml"), key=lambda path: path.stat().st_mtime)
    if not used:
        raise SlipwayError(f"{paths.own}: Snakemake has not run here yet; name a config file")
    return used[-1]


if __name__ == "__main__":
    run(main)
