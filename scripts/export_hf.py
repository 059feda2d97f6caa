"""Write the trained model of a run in Hugging Face's format, from the Megatron checkpoint that its manifest names."""

import argparse
from pathlib import Path

from slipway.cli import run, start_logging
from slipway.config.load import load_config
from slipway.config.paths import ResultPaths
from slipway.convert.to_hf import export_hf
from slipway.models.source import local_folder


def main() -> None:
    """Read the arguments and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="the config file")
    parser.add_argument("run", help="name of the run under `runs`")
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--log", type=Path, help="file that also gets the log")
    arguments = parser.parse_args()
    start_logging(arguments.log)
    config = load_config(arguments.config)
    paths = ResultPaths(arguments.results)
    model = config.runs[arguments.run].model
    base = local_folder(config.models[model], model, paths)
    export_hf(paths.train(arguments.run), base, paths.trained_model(arguments.run))


if __name__ == "__main__":
    run(main)
