"""Write the report of a run: report.html, and metrics.json, summary.md, model card and RO-Crate beside it."""

from slipway.cli import run, stage_parser, start
from slipway.config.load import load_config
from slipway.config.paths import ResultPaths
from slipway.report.settings_view import settings_of
from slipway.report.stage import say_verdict, write_partial_report, write_report


def main() -> None:
    """Read the arguments and write the report."""
    parser = stage_parser(__doc__)
    parser.add_argument("run", help="name under `runs`")
    parser.add_argument("--verdict", action="store_true", help="only say what came out, from metrics.json")
    parser.add_argument("--partial", action="store_true", help="report.partial.html, of a run that failed")
    arguments = start(parser)
    paths = ResultPaths(arguments.results)
    if arguments.verdict:
        say_verdict(paths, arguments.run)
        return
    settings = settings_of(load_config(arguments.config), arguments.run)
    write = write_partial_report if arguments.partial else write_report
    write(paths, settings)


if __name__ == "__main__":
    run(main)
