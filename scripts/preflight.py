"""Check a run before anything is held: config, layout, batches, lengths, tokenizer, reward, verl's own validation."""

from slipway.cli import run, stage_parser, start
from slipway.errors import SlipwayError
from slipway.preflight.stage import Subject, preflight
from slipway.resolve import architecture_of, model_folder, plan_from_file
from slipway.rewards.verl_function import compute_score


def main() -> None:
    """Read the command line and check one run."""
    parser = stage_parser(__doc__)
    parser.add_argument("run", help="name under `runs`")
    arguments = start(parser)

    plan = plan_from_file(arguments.config, arguments.results)
    resolved, paths, config = plan.resolved(arguments.run), plan.paths, plan.config
    model = config.models[resolved.run.model]
    architecture = architecture_of(resolved.run.model, model, paths)
    if architecture is None:
        raise SlipwayError(f"models.{resolved.run.model}: not there yet; run rule convert_megatron first")
    preflight(
        Subject(
            name=resolved.name,
            run=resolved.run,
            data=config.data[resolved.run.data],
            parallel=resolved.parallel,
            model=architecture,
            resolved=resolved.verl.plain(),
            model_folder=model_folder(resolved.run.model, model, paths),
            data_folder=paths.data(resolved.run.data),
            heldout_folders={name: paths.data(config.evaluation[name].data) for name in resolved.run.evaluation},
            megatron_manifest=paths.megatron_model(resolved.run.model) / "manifest.json",
            compute_score=compute_score,
        ),
        paths.run(resolved.name) / "preflight.json",
        paths.preflight(resolved.name),
    )


if __name__ == "__main__":
    run(main)
