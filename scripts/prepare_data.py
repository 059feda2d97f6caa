"""Make a data set: generate, filter, deduplicate, split and self-test (rule prepare_data)."""

import argparse
from pathlib import Path

from slipway.cli import run, start_logging
from slipway.config.load import load_config
from slipway.config.paths import ResultPaths
from slipway.data import prepare_data


def main() -> None:
    """Read the arguments and run the stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="config.yaml")
    parser.add_argument("data", help="name under `data` in the config")
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder")
    parser.add_argument("--log", type=Path, help="file that keeps what is shown")
    arguments = parser.parse_args()
    start_logging(arguments.log)
    config = load_config(arguments.config)
    prepare_data(config.data[arguments.data], ResultPaths(arguments.results).data(arguments.data))


if __name__ == "__main__":
    run(main)
