"""Make a data set: read, filter, deduplicate, decontaminate, split and self-test (rule prepare_data)."""

from slipway.cli import run, stage_parser, start
from slipway.config.load import load_config, named
from slipway.config.paths import ResultPaths


def main() -> None:
    """Read the arguments and run the stage."""
    parser = stage_parser(__doc__)
    parser.add_argument("data", help="name under `data` in the config")
    parser.add_argument("--processes", type=int, default=1, help="processes that read the sources (%(default)s)")
    arguments = start(parser)
    config, paths = load_config(arguments.config), ResultPaths(arguments.results)
    settings = named(config.data, "data", arguments.data)
    # after what can be told without it: datasets and torch take seconds to import
    from slipway.data import prepare_data
    from slipway.resolve import surroundings_of_data

    around = surroundings_of_data(arguments.data, config, paths, arguments.processes)
    prepare_data(settings, paths.data(arguments.data), around)


if __name__ == "__main__":
    run(main)
