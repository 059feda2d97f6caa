"""Put the parts of the CPU backend in place, in the order in which they depend on each other."""

import importlib
import os
from collections.abc import Callable
from types import ModuleType

import torch
import wrapt

from slipway.cpu.environment import ROLLOUT_NAME
from slipway.errors import SlipwayError

_installed = False


def install() -> None:
    """Install the backend in this process, once."""
    global _installed
    if _installed:
        return
    _refuse_visible_gpu()
    _installed = True  # before the imports below, which may come back here

    from slipway.cpu import bfloat16, distributed, torch_cuda

    torch_cuda.install()
    distributed.install()
    bfloat16.install()
    importlib.import_module("slipway.cpu.platform")  # registers itself
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    _patch_when_imported()


def _refuse_visible_gpu() -> None:
    """Refuse before anything is replaced: the backend would train on the CPU and call it CUDA."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if devices:
        raise SlipwayError(
            f"VERL_PLATFORM=cpu, but torch sees {devices} CUDA device(s): the CPU backend replaces torch.cuda and "
            "must not run where a GPU is visible. Hide them with CUDA_VISIBLE_DEVICES=-1, or unset VERL_PLATFORM "
            "to train on the GPU."
        )


def _patch_when_imported() -> None:
    """Change other packages' modules only once somebody imports them: verl alone takes seconds."""
    for name, change in _CHANGES.items():
        wrapt.when_imported(name)(change)


def _register_replica(module: ModuleType) -> None:
    def replica_class() -> type:
        from slipway.cpu.rollout import TransformersReplica

        return TransformersReplica

    module.RolloutReplicaRegistry.register(ROLLOUT_NAME, replica_class)


def _register_rollout(module: ModuleType) -> None:
    # verl has a registry for this class but no function to register with.
    module._ROLLOUT_REGISTRY[(ROLLOUT_NAME, "async")] = "slipway.cpu.rollout.WeightSender"


def _register_agent_loop(_module: ModuleType) -> None:
    importlib.import_module("slipway.cpu.agent_loop")  # registers itself


def _by(part: str, function: str) -> Callable[[ModuleType], None]:
    """Return a change that a function of a part of this package makes; the part is imported when its turn comes."""

    def change(module: ModuleType) -> None:
        getattr(importlib.import_module(f"slipway.cpu.{part}"), function)(module)

    return change


_CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "verl.workers.rollout.replica": _register_replica,
    "verl.workers.rollout.base": _register_rollout,
    "verl.experimental.agent_loop.single_turn_agent_loop": _register_agent_loop,
    "megatron.core.tensor_parallel.random": _by("torch_cuda", "redirect_megatron_rng"),
    "megatron.core.transformer.moe.moe_utils": _by("megatron", "patch_router"),
    "megatron.core.transformer.moe.token_dispatcher": _by("megatron", "patch_dispatcher"),
    "mbridge.core.llm_bridge": _by("megatron", "patch_mbridge"),
    "verl.models.mcore.model_initializer": _by("megatron", "patch_verl_initializer"),
    "megatron.core.optimizer.distrib_optimizer": _by("optimizer_state", "patch"),
}
