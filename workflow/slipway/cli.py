"""What the scripts share: their arguments, where their words go, and how a user's mistake ends them."""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from slipway.config.paths import step_of
from slipway.errors import SlipwayError, disk_faults_explained

logger = logging.getLogger("slipway")


def stage_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of what every stage takes: the config first, then what the script adds; results and log."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("config", type=Path, help="the YAML config")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of all results (%(default)s)")
    parser.add_argument("--log", type=Path, help="file that keeps the log")
    return parser


def add_checkpoint(parser: argparse.ArgumentParser, *names: str, default: str | None = None) -> None:
    """Add the argument that says which of a run's models is meant: one of `names`, or `step-<n>`."""

    def checked(value: str) -> str:
        if value not in names and step_of(value) is None:
            raise argparse.ArgumentTypeError(f"{value!r} is none of {', '.join(names)} and step-<n>")
        return value

    parser.add_argument(
        "checkpoint",
        type=checked,
        nargs="?" if default else None,
        default=default,
        metavar="{" + ",".join([*names, "step-<n>"]) + "}",
        help="which model of the run" + (f" ({default})" if default else ""),
    )


def start(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line and start logging to where it says."""
    arguments = parser.parse_args()
    start_logging(arguments.log)
    return arguments


def start_logging(log_file: Path | None) -> None:
    """Show progress on standard error and keep it, with times, in `log_file`."""
    logger.setLevel(logging.INFO)
    logger.propagate = False
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(terminal)
    if log_file is not None:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        kept = logging.FileHandler(log_file, encoding="utf-8")
        kept.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(kept)


def run(main: Callable[[], None]) -> None:
    """Run `main`; a `SlipwayError`, or a fault of the disk, is printed alone and ends the process with status 1."""
    try:
        with disk_faults_explained():
            main()
    except SlipwayError as error:
        if logger.handlers:
            logger.error("error: %s", error)
        else:
            print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
