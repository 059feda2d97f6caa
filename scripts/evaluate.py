"""Evaluate the base or the trained model of a run on held-out questions."""

import argparse
from pathlib import Path

from slipway.cli import run, start_logging
from slipway.config.load import load_config
from slipway.config.paths import ResultPaths
from slipway.evaluate.stage import EvaluationTask, evaluate_model
from slipway.models.source import local_folder


def main() -> None:
    """Read the arguments and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="the YAML config")
    parser.add_argument("run", help="name under `runs`")
    parser.add_argument("checkpoint", choices=["base", "final"], help="which model of the run")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of all results")
    parser.add_argument("--log", type=Path, help="file that keeps the log")
    arguments = parser.parse_args()
    start_logging(arguments.log)
    config = load_config(arguments.config)
    paths = ResultPaths(arguments.results)
    settings = config.runs[arguments.run]
    tasks = [
        EvaluationTask(
            name=name,
            settings=config.evaluation[name],
            data_folder=paths.data(config.evaluation[name].data),
            max_response_length=config.evaluation[name].max_response_length or settings.grpo.max_response_length,
        )
        for name in settings.evaluation
    ]
    # a trained model was exported by rule export_hf; a base model is made, the user's own, or the hub's
    if arguments.checkpoint == "final":
        model = paths.trained_model(arguments.run)
    else:
        model = local_folder(config.models[settings.model], settings.model, paths)
    evaluate_model(
        arguments.checkpoint,
        model,
        tasks,
        paths.evaluation_result(arguments.run, arguments.checkpoint),
        paths.evaluation(arguments.run, arguments.checkpoint),
    )


if __name__ == "__main__":
    run(main)
