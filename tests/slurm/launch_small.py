"""Launch the small trainer as rule `train` launches verl: the real launcher, submitit and SLURM."""

import argparse
import sys
from pathlib import Path

import yaml

from slipway.cli import run, start_logging
from slipway.config.site import Site
from slipway.launch.launcher import train
from slipway.launch.training import Training


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--step-seconds", type=float, default=0.5)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--fail-at-step", type=int)
    parser.add_argument("--leave-at-step", type=int)
    parser.add_argument("--partition")
    parser.add_argument("--executor", default="slurm")
    arguments = parser.parse_args()
    start_logging(None)
    folder = arguments.folder.absolute()
    config = {
        "trainer": {
            "device": "cpu",
            "total_training_steps": arguments.steps,
            "save_freq": arguments.save_every,
            "default_local_dir": str(folder / "train/checkpoints"),
        },
        "small": {
            "step_seconds": arguments.step_seconds,
            "size": 16,
            "shards": 2,
            "fail_at_step": arguments.fail_at_step,
            "leave_at_step": arguments.leave_at_step,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(config))
    train(
        Training(
            run="small",
            config_file=file,
            resolved={"trainer": {"total_training_steps": arguments.steps}},
            inputs={"data": "0", "model": "0"},
            environment={"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"},
            train_folder=folder / "train",
            runtime_minutes=arguments.minutes,
            gpus=1,
            nodes=arguments.nodes,
            ray_node={"num_cpus": 4, "object_store_memory": 100_000_000},
            executor=arguments.executor,
            site=Site.model_validate(
                {
                    "cpus_per_gpu": 2,
                    "memory_gib_per_gpu": 2,
                    "gpu_type": "h200",
                    "gpu_partition": arguments.partition,
                    "account": "rl",
                }
            ),
            module="small_trainer",
        )
    )


if __name__ == "__main__":
    sys.exit(run(main))
