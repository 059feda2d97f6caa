"""Write a trained model of a run in Hugging Face's format, from the checkpoint of its last or an earlier step."""

from slipway.cli import add_checkpoint, run, stage_parser, start
from slipway.config.load import load_config, named
from slipway.config.paths import FINAL, ResultPaths, step_of
from slipway.models.source import local_folder


def main() -> None:
    """Read the arguments and export."""
    parser = stage_parser(__doc__)
    parser.add_argument("run", help="name of the run under `runs`")
    add_checkpoint(parser, FINAL, default=FINAL)
    arguments = start(parser)
    config = load_config(arguments.config)
    paths = ResultPaths(arguments.results)
    model = named(config.runs, "runs", arguments.run).model
    # after what can be told without it: torch takes seconds to import
    from slipway.convert.to_hf import export_hf

    base = local_folder(config.models[model], model, paths)
    which = arguments.checkpoint
    export_hf(paths.train(arguments.run), base, paths.trained_model(arguments.run, which), step_of(which))


if __name__ == "__main__":
    run(main)
