"""Make a demo model and warm-start it by supervised training (rule make_demo_model)."""

import argparse
from pathlib import Path

from slipway.cli import run, start_logging
from slipway.config.load import load_config
from slipway.config.paths import ResultPaths
from slipway.errors import SlipwayError
from slipway.models.demo import make_demo_model


def main() -> None:
    """Read the arguments and run the stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="config.yaml")
    parser.add_argument("model", help="name under `models` in the config, one with a `demo` recipe")
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder")
    parser.add_argument("--log", type=Path, help="file that keeps what is shown")
    arguments = parser.parse_args()
    start_logging(arguments.log)
    recipe = load_config(arguments.config).models[arguments.model].demo
    if recipe is None:
        raise SlipwayError(f"models.{arguments.model}: has no `demo` recipe, so there is nothing to make")
    paths = ResultPaths(arguments.results)
    make_demo_model(recipe, paths.data(recipe.data), paths.hf_model(arguments.model))


if __name__ == "__main__":
    run(main)
