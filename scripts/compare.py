"""Write results/compare.html: all runs of a config side by side."""

import argparse
from pathlib import Path

from slipway.cli import run, start_logging
from slipway.config.load import load_config
from slipway.config.paths import ResultPaths
from slipway.report.runs_table import write_comparison
from slipway.report.settings_view import flat


def main() -> None:
    """Read the arguments and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="the YAML config")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of all results")
    parser.add_argument("--log", type=Path, help="file that keeps the log")
    arguments = parser.parse_args()
    start_logging(arguments.log)
    config = load_config(arguments.config)
    runs = {name: flat(settings.model_dump()) for name, settings in config.runs.items()}
    write_comparison(ResultPaths(arguments.results), runs)


if __name__ == "__main__":
    run(main)
