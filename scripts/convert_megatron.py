"""Convert a model of the config from Hugging Face's format to Megatron's, and prove it on the written files."""

import argparse
from pathlib import Path

from slipway.cli import run, start_logging
from slipway.config.load import load_config
from slipway.config.paths import ResultPaths
from slipway.convert.to_megatron import convert_megatron
from slipway.models.source import local_folder


def main() -> None:
    """Read the arguments and convert."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="the config file")
    parser.add_argument("model", help="name of the model under `models`")
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--log", type=Path, help="file that also gets the log")
    arguments = parser.parse_args()
    start_logging(arguments.log)
    config = load_config(arguments.config)
    paths = ResultPaths(arguments.results)
    source = local_folder(config.models[arguments.model], arguments.model, paths)
    convert_megatron(source, paths.megatron_model(arguments.model))


if __name__ == "__main__":
    run(main)
