"""Check runs before anything is held: keys, layout, batches, lengths, tokenizer, reward, verl's own validation.

With a run, everything that can be checked once its data and model are there; with --static, what follows from the
config alone, of one run or of all. With --verl-args, the text of a launch of verl's main_ppo that knows nothing of
Slipway. Ends with 0 when no finding is an error, else with 1.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from slipway.cli import run, start_logging
from slipway.config.load import ConfigError, Problem, overlay, read_yaml
from slipway.errors import SlipwayError
from slipway.preflight.findings import Finding, Severity, as_text, errors
from slipway.preflight.planning.hardware import gpu_named
from slipway.resolve import Plan, architecture_of, model_folder, plan, subject_to_judge

DEFAULTS = Path(__file__).resolve().parents[1] / "config.yaml"


def main() -> None:
    """Read the command line and check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, nargs="?", help="the YAML config; it is laid over Slipway's config.yaml")
    parser.add_argument("run", nargs="?", help="name under `runs`; without it, the static checks of all")
    parser.add_argument("--static", action="store_true", help="only what the config alone tells, in a second or two")
    parser.add_argument("--verl-args", metavar="TEXT", help="a command line or script of main_ppo; @FILE reads a file")
    parser.add_argument("--model", help="with --verl-args: folder with the model's config.json, or a name that ships")
    parser.add_argument("--gpu", help="with --verl-args: a GPU's name, e.g. H100-80GB, to forecast memory for")
    parser.add_argument("--json", action="store_true", help="print findings as JSON (workflow/schemas)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of all results (%(default)s)")
    parser.add_argument("--log", type=Path, help="file that keeps the log")
    arguments = parser.parse_args()
    refuse_what_does_not_go_together(parser, arguments)
    start_logging(arguments.log)
    if arguments.verl_args is not None:
        tell(judge_command_line(arguments.verl_args, arguments.model, arguments.gpu), arguments.json)
        return
    try:
        checked = plan(overlay(read_yaml(DEFAULTS), read_yaml(arguments.config)), arguments.results)
    except ConfigError as error:  # with every static error of every run
        if not arguments.json:
            raise
        tell([as_finding(problem) for problem in error.problems], as_json=True)
        return
    if arguments.static or arguments.run is None:
        names = [arguments.run] if arguments.run else list(checked.runs)
        tell([finding for name in names for finding in checked.resolved(name).findings], arguments.json)
    else:
        check_everything(checked, arguments.run)


def refuse_what_does_not_go_together(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End the process where the config's options and those of a launch's text are mixed, or neither is given."""
    if arguments.verl_args is None:
        if arguments.config is None:
            parser.error("name a config, or give --verl-args")
        for option, value in (("--model", arguments.model), ("--gpu", arguments.gpu)):
            if value is not None:
                parser.error(f"{option} {value}: is for --verl-args; a run's model and GPU are in its config")
    elif arguments.config is not None:
        parser.error(f"{arguments.config}: --verl-args judges a launch without a config; give one of the two")


def judge_command_line(text: str, model: str | None, gpu: str | None) -> list[Finding]:
    """Return the findings about somebody's own launch of verl."""
    from slipway.preflight.command_line import judge

    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SlipwayError(f"--verl-args {text}: cannot be read: {error}") from None
    return judge(text, model, gpu_named(gpu) if gpu else None)


def as_finding(problem: Problem) -> Finding:
    """Return a problem of the config as a finding."""
    return Finding("config", Severity.ERROR, problem.key, problem.value, problem.why, problem.remedy)


def tell(findings: Sequence[Finding], as_json: bool) -> None:
    """Print findings; end the process with status 1 when one is an error."""
    print(
        json.dumps([asdict(finding) for finding in findings], indent=2, default=str) if as_json else as_text(findings)
    )
    if errors(findings):
        sys.exit(1)


def check_everything(checked: Plan, name: str) -> None:
    """Check one run whose data and model are there, and publish its report."""
    resolved, paths, config = checked.resolved(name), checked.paths, checked.config
    model = config.models[resolved.run.model]
    architecture = architecture_of(resolved.run.model, model, paths)
    if architecture is None:
        raise SlipwayError(f"models.{resolved.run.model}: not there yet; run rule convert_megatron first")
    # after what can be told without it: transformers takes seconds to import
    from slipway.preflight.stage import Candidate, preflight
    from slipway.rewards.verl_function import compute_score

    base = paths.evaluation(name, "base")
    preflight(
        Candidate(
            name=name,
            run=resolved.run,
            subject=subject_to_judge(name, resolved.run, config.data[resolved.run.data], resolved.verl, architecture),
            model=architecture,
            resolved=resolved.verl.plain(),
            model_folder=model_folder(resolved.run.model, model, paths),
            data_folder=paths.data(resolved.run.data),
            heldout_folders={name: paths.data(config.evaluation[name].data) for name in resolved.run.evaluation},
            megatron_manifest=paths.megatron_model(resolved.run.model) / "manifest.json",
            base_samples={which: base / f"{which}.jsonl" for which in resolved.run.evaluation},
            compute_score=compute_score,
        ),
        paths.run(name) / "preflight.json",
        paths.preflight(name),
    )


if __name__ == "__main__":
    run(main)
