"""Put the parts of the CPU backend in place, in the order in which they depend on each other."""

import importlib
import os
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

    @wrapt.when_imported("verl.workers.rollout.replica")
    def _(module: ModuleType) -> None:
        def replica_class() -> type:
            from slipway.cpu.rollout import TransformersReplica

            return TransformersReplica

        module.RolloutReplicaRegistry.register(ROLLOUT_NAME, replica_class)

    @wrapt.when_imported("verl.workers.rollout.base")
    def _(module: ModuleType) -> None:
        # verl has a registry for this class but no function to register with.
        module._ROLLOUT_REGISTRY[(ROLLOUT_NAME, "async")] = "slipway.cpu.rollout.WeightSender"

    @wrapt.when_imported("verl.experimental.agent_loop.single_turn_agent_loop")
    def _(_module: ModuleType) -> None:
        importlib.import_module("slipway.cpu.agent_loop")  # registers itself

    @wrapt.when_imported("megatron.core.tensor_parallel.random")
    def _(module: ModuleType) -> None:
        from slipway.cpu import torch_cuda

        torch_cuda.redirect_megatron_rng(module)

    @wrapt.when_imported("megatron.core.transformer.moe.moe_utils")
    def _(module: ModuleType) -> None:
        from slipway.cpu import megatron

        megatron.patch_router(module)

    @wrapt.when_imported("megatron.core.transformer.moe.token_dispatcher")
    def _(module: ModuleType) -> None:
        from slipway.cpu import megatron

        megatron.patch_dispatcher(module)

    @wrapt.when_imported("mbridge.core.llm_bridge")
    def _(module: ModuleType) -> None:
        from slipway.cpu import megatron

        megatron.patch_mbridge(module)

    @wrapt.when_imported("verl.models.mcore.model_initializer")
    def _(module: ModuleType) -> None:
        from slipway.cpu import megatron

        megatron.patch_verl_initializer(module)

    @wrapt.when_imported("megatron.core.optimizer.distrib_optimizer")
    def _(module: ModuleType) -> None:
        from slipway.cpu import optimizer_state

        optimizer_state.patch(module)
