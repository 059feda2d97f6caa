"""Train a run: submit its job, or follow the one that is at work already, until the last step."""

from slipway.cli import run, stage_parser, start
from slipway.config.site import read_site
from slipway.launch.launcher import train
from slipway.launch.started import model_digest
from slipway.launch.training import Training
from slipway.manifest import read_manifest
from slipway.resolve import device_environment, plan_from_file, ray_node_options


def main() -> None:
    """Read the command line and train."""
    parser = stage_parser(__doc__)
    parser.add_argument("run", help="name under `runs`")
    parser.add_argument(
        "--executor", choices=("local", "slurm"), default="local", help="where the job runs (%(default)s)"
    )
    arguments = start(parser)

    plan = plan_from_file(arguments.config, arguments.results)
    resolved, paths = plan.resolved(arguments.run), plan.paths
    plan.write_verl_config(arguments.run)
    train(
        Training(
            run=resolved.name,
            config_file=paths.verl_config(resolved.name),
            resolved=resolved.verl.plain(),
            inputs={
                "data": read_manifest(paths.data(resolved.run.data) / "manifest.json", "prepare_data").hash_of(
                    "train.parquet"
                ),
                "model": model_digest(
                    read_manifest(paths.megatron_model(resolved.run.model) / "manifest.json", "convert_megatron")
                ),
            },
            environment=device_environment(resolved.run),
            ray_node=ray_node_options(resolved.run),
            train_folder=paths.train(resolved.name),
            runtime_minutes=resolved.run.runtime_minutes,
            gpus=resolved.run.gpus_per_node if resolved.run.device == "cuda" else 0,
            nodes=resolved.run.nodes,
            processes=resolved.run.gpus_per_node,
            keep_checkpoints=resolved.run.keep_checkpoints,
            evaluated_steps=resolved.run.evaluated_steps,
            executor=arguments.executor,
            site=read_site(),
        )
    )


if __name__ == "__main__":
    run(main)
