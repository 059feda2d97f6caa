"""Evaluate a model of a run on held-out questions: the base, the trained one, or that of an earlier step."""

from slipway.cli import add_checkpoint, run, stage_parser, start
from slipway.config.load import load_config, named
from slipway.config.paths import BASE, FINAL, ResultPaths
from slipway.config.schema import Config
from slipway.models.source import local_folder


def main() -> None:
    """Read the arguments and evaluate."""
    parser = stage_parser(__doc__)
    parser.add_argument("run", help="name under `runs`")
    add_checkpoint(parser, BASE, FINAL)
    parser.add_argument(
        "--rescore",
        action="store_true",
        help="score the answers of an earlier evaluation again, by the config's reward settings: no model, no GPU",
    )
    arguments = start(parser)
    config = load_config(arguments.config)
    paths = ResultPaths(arguments.results)
    named(config.runs, "runs", arguments.run)
    (_rescore if arguments.rescore else _evaluate)(config, paths, arguments.run, arguments.checkpoint)


def _evaluate(config: Config, paths: ResultPaths, run: str, checkpoint: str) -> None:
    # after what can be told without it: torch takes seconds to import
    from slipway.evaluate.stage import EvaluationTask, evaluate_model

    settings = config.runs[run]
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
    if checkpoint == BASE:
        model = local_folder(config.models[settings.model], settings.model, paths)
    else:
        model = paths.trained_model(run, checkpoint)
    evaluate_model(
        checkpoint,
        model,
        tasks,
        paths.evaluation_result(run, checkpoint),
        paths.evaluation(run, checkpoint),
        settings.device,
    )


def _rescore(config: Config, paths: ResultPaths, run: str, checkpoint: str) -> None:
    from slipway.evaluate.rescore import rescore
    from slipway.rewards import reward_text

    rewards = {
        name: reward_text(config.data[config.evaluation[name].data].reward) for name in config.runs[run].evaluation
    }
    rescore(checkpoint, rewards, paths.evaluation_result(run, checkpoint), paths.evaluation(run, checkpoint))


if __name__ == "__main__":
    run(main)
