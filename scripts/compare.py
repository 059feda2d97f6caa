"""Write results/compare.html: all runs of a config side by side."""

from slipway.cli import run, stage_parser, start
from slipway.config.load import load_config
from slipway.config.paths import ResultPaths
from slipway.report.runs_table import write_comparison
from slipway.report.settings_view import comparable, settings_of


def main() -> None:
    """Read the arguments and write the page."""
    parser = stage_parser(__doc__)
    arguments = start(parser)
    config = load_config(arguments.config)
    runs = {name: comparable(settings_of(config, name)) for name in config.runs}
    write_comparison(ResultPaths(arguments.results), runs)


if __name__ == "__main__":
    run(main)
