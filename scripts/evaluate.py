"""Evaluate the base or the trained model of a run on held-out questions."""

from slipway.cli import run, stage_parser, start
from slipway.config.load import load_config, named
from slipway.config.paths import ResultPaths
from slipway.models.source import local_folder


def main() -> None:
    """Read the arguments and evaluate."""
    parser = stage_parser(__doc__)
    parser.add_argument("run", help="name under `runs`")
    parser.add_argument("checkpoint", choices=["base", "final"], help="which model of the run")
    arguments = start(parser)
    config = load_config(arguments.config)
    paths = ResultPaths(arguments.results)
    settings = named(config.runs, "runs", arguments.run)
    # after what can be told without it: torch takes seconds to import
    from slipway.evaluate.stage import EvaluationTask, evaluate_model

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
        settings.device,
    )


if __name__ == "__main__":
    run(main)
