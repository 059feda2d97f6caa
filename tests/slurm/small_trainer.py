"""A trainer with the contract of verl's `main_ppo` towards the launcher, and nothing of its weight.

Same command line, checkpoint folders, metrics file, stop order; deterministic. On several nodes the gradient of each
shard is computed by a Ray actor on a node of its own. Its settings are under `small` in the config; verl's own
config does too.
"""

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

import torch
import yaml

from slipway.launch.stop import VARIABLE, StopWatch

# For a config of verl's, which has no such section; a run of that name fails in its third step.
DEFAULTS = {"step_seconds": 0.5, "size": 16, "shards": 2, "failing_run": "fails"}


def main() -> None:
    print(f"trainer began at {time.time()}", flush=True)  # benchmarks/launcher.py reads it
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-path", type=Path)
    parser.add_argument("--config-name")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    config = yaml.safe_load((arguments.config_path / f"{arguments.config_name}.yaml").read_text())
    trainer, small = config["trainer"], DEFAULTS | config.get("small", {})
    if trainer.get("experiment_name") == small["failing_run"]:
        small["fail_at_step"] = 3
    folder = Path(trainer["default_local_dir"])
    model = torch.nn.Linear(small["size"], 1)
    torch.manual_seed(0)
    torch.nn.init.normal_(model.weight)
    torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first = resume(folder, model, optimizer) + 1
    gradients = Gradients(small)
    watch, metrics = StopWatch.from_environment(), Path(os.environ["VERL_FILE_LOGGER_PATH"])
    with metrics.open("w") as log:
        for step in range(first, trainer["total_training_steps"] + 1):
            watch.step_begins()
            began = time.monotonic()
            if step == small.get("fail_at_step"):
                raise RuntimeError("the small trainer was told to fail here")
            if step == small.get("leave_at_step"):
                return  # with status 0
            loss = 0.0
            optimizer.zero_grad()
            for gradient, value in gradients.of(step, model):
                loss += value
                for parameter, part in zip(model.parameters(), gradient, strict=True):
                    parameter.grad = part if parameter.grad is None else parameter.grad + part
            optimizer.step()
            time.sleep(small["step_seconds"])
            last = step == trainer["total_training_steps"]
            values = {"timing_s/step": time.monotonic() - began, "loss": loss}
            stopping = not last and watch.must_stop()
            if last or stopping or step % trainer["save_freq"] == 0:
                saving = time.monotonic()
                save(folder, step, model, optimizer)
                values["timing_s/save_checkpoint"] = time.monotonic() - saving
                watch.saved(values["timing_s/save_checkpoint"])
            log.write(json.dumps({"step": step, "data": values}) + "\n")
            log.flush()
            if stopping:
                return


class Gradients:
    """Gradients of a regression on data that follow from step and shard."""

    def __init__(self, small: dict):
        self.small = small
        self.actors = []
        if "RAY_ADDRESS" in os.environ:
            import ray
            from ray.util.placement_group import placement_group
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            ray.init(log_to_driver=False)
            shards = small["shards"]
            group = placement_group([{"CPU": 1}] * shards, strategy="STRICT_SPREAD")
            ray.get(group.ready(), timeout=120)
            remote = ray.remote(Shard)
            self.actors = [
                remote.options(
                    num_cpus=1,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i),
                ).remote(small["size"], i)
                for i in range(shards)
            ]
            hosts, metrics, orders = zip(*ray.get([actor.place.remote() for actor in self.actors]), strict=True)
            print("shards on", sorted(hosts), flush=True)  # Ray chooses the order
            # verl's trainer is an actor too, on any of the nodes: it logs to the one and obeys the other
            assert set(metrics) == {os.environ["VERL_FILE_LOGGER_PATH"]}, metrics
            assert set(orders) == {os.environ[VARIABLE]}, orders

    def of(self, step: int, model: torch.nn.Linear) -> list:
        weights = [parameter.detach() for parameter in model.parameters()]
        if self.actors:
            import ray

            return ray.get([actor.gradient.remote(step, weights) for actor in self.actors])
        return [Shard(self.small["size"], index).gradient(step, weights) for index in range(self.small["shards"])]


class Shard:
    def __init__(self, size: int, index: int):
        self.size, self.index = size, index

    def place(self) -> tuple[str, str | None, str | None]:
        import socket

        return socket.gethostname(), os.environ.get("VERL_FILE_LOGGER_PATH"), os.environ.get(VARIABLE)

    def gradient(self, step: int, weights: list[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
        generator = torch.Generator().manual_seed(1000 * step + self.index)
        inputs = torch.randn(8, self.size, generator=generator)
        weight, bias = (part.clone().requires_grad_() for part in weights)
        loss = ((inputs @ weight.T + bias - inputs.sum(1, keepdim=True)) ** 2).mean()
        return list(torch.autograd.grad(loss, [weight, bias])), float(loss)


def resume(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    latest = folder / "latest_checkpointed_iteration.txt"
    if not latest.is_file():
        return 0
    step = int(latest.read_text())
    state = torch.load(folder / f"global_step_{step}" / "state.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return step


def save(folder: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    target = folder / f"global_step_{step}"
    target.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, target / "state.pt")
    (target / "metadata.json").write_text(json.dumps({"step": step}))
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
    for old in sorted(folder.glob("global_step_*"), key=lambda path: int(path.name.rpartition("_")[2]))[:-2]:
        shutil.rmtree(old)


if __name__ == "__main__":
    sys.exit(main())
