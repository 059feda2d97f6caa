"""Choose a data set's held-out problems, for others to be decontaminated against (rule hold_out)."""

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
    from slipway.data import hold_out
    from slipway.resolve import surroundings_of_data

    around = surroundings_of_data(arguments.data, config, paths, arguments.processes)
    hold_out(settings, paths.held_out(arguments.data), around)


if __name__ == "__main__":
    run(main)
