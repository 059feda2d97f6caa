"""Train a run: submit its job, or follow the one that is at work already, until the last step."""

import argparse
from pathlib import Path

from slipway.cli import run, start_logging
from slipway.launch.launcher import Training, train
from slipway.manifest import read_manifest
from slipway.resolve import device_environment, plan_from_file


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="config file")
    parser.add_argument("run", help="name under `runs`")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of results")
    parser.add_argument("--log", type=Path, help="keep the log here")
    arguments = parser.parse_args()
    start_logging(arguments.log)

    plan = plan_from_file(arguments.config, arguments.results)
    resolved, paths = plan.resolved(arguments.run), plan.paths
    train(
        Training(
            run=resolved.name,
            config_file=paths.verl_config(resolved.name),
            resolved=resolved.verl,
            inputs={
                "data": read_manifest(paths.data(resolved.run.data) / "manifest.json", "prepare_data").hash_of(
                    "train.parquet"
                ),
                "model": read_manifest(
                    paths.megatron_model(resolved.run.model) / "manifest.json", "convert_megatron"
                ).digest,
            },
            environment=device_environment(resolved.run),
            train_folder=paths.train(resolved.name),
            runtime_minutes=resolved.run.runtime_minutes,
            gpus=resolved.run.gpus_per_node if resolved.run.device == "cuda" else 0,
        )
    )


if __name__ == "__main__":
    run(main)
