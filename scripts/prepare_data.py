"""Make a data set: generate, filter, deduplicate, split and self-test (rule prepare_data)."""

from slipway.cli import run, stage_parser, start
from slipway.config.load import load_config, named
from slipway.config.paths import ResultPaths
from slipway.data import prepare_data


def main() -> None:
    """Read the arguments and run the stage."""
    parser = stage_parser(__doc__)
    parser.add_argument("data", help="name under `data` in the config")
    arguments = start(parser)
    config = load_config(arguments.config)
    prepare_data(named(config.data, "data", arguments.data), ResultPaths(arguments.results).data(arguments.data))


if __name__ == "__main__":
    run(main)
