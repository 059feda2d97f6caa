"""Write the report of a run: report.html, and metrics.json, summary.md, model card and RO-Crate beside it."""

import argparse
from pathlib import Path

from slipway.cli import run, start_logging
from slipway.config.load import load_config
from slipway.config.paths import ResultPaths
from slipway.config.schema import Config
from slipway.errors import SlipwayError
from slipway.report.settings_view import RunSettings
from slipway.report.stage import say_verdict, write_partial_report, write_report


def main() -> None:
    """Read the arguments and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="the YAML config")
    parser.add_argument("run", help="name under `runs`")
    parser.add_argument("--verdict", action="store_true", help="only say what came out, from metrics.json")
    parser.add_argument("--partial", action="store_true", help="report.partial.html, of a run that failed")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of all results")
    parser.add_argument("--log", type=Path, help="file that keeps the log")
    arguments = parser.parse_args()
    start_logging(arguments.log)
    paths = ResultPaths(arguments.results)
    if arguments.verdict:
        say_verdict(paths, arguments.run)
        return
    settings = settings_of(load_config(arguments.config), arguments.run)
    write = write_partial_report if arguments.partial else write_report
    write(paths, settings)


def settings_of(config: Config, name: str) -> RunSettings:
    """Return the sections of the config that a run names."""
    if name not in config.runs:
        raise SlipwayError(f"the config has no run {name!r}; there are: {', '.join(config.runs)}")
    settings = config.runs[name]
    evaluations = {item: config.evaluation[item] for item in settings.evaluation}
    data = dict.fromkeys([settings.data, *(evaluation.data for evaluation in evaluations.values())])
    return RunSettings(
        name=name,
        run=settings,
        model=config.models[settings.model],
        data={item: config.data[item] for item in data},
        evaluations=evaluations,
    )


if __name__ == "__main__":
    run(main)
