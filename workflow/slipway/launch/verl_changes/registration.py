"""Loaded by every process that imports verl (`VERL_USE_EXTERNAL_MODULES`): what Slipway changes about a training.

It registers our trainer where one is built, corrects mbridge's DeepSeek-V3 and Mixtral where mbridge is used, makes
rows of nested tensors, the balancing of batches, agent loops and what they store cheap where there are such, and keeps
start-up's objects out of collections of garbage.
"""

import importlib
from types import ModuleType

import wrapt

from slipway.launch.verl_changes import garbage

garbage.install()


# Importing a trainer takes seconds, and most of verl's processes need none.
@wrapt.when_imported("verl.trainer.ppo.v1")
def _register(_module: ModuleType) -> None:
    importlib.import_module("slipway.launch.verl_changes.trainer")


# The module of all of mbridge's models, which it registers when it is imported.
@wrapt.when_imported("mbridge.models")
def _correct_bridges(_module: ModuleType) -> None:
    for bridge in ("deepseek_bridge", "mixtral_bridge"):
        importlib.import_module(f"slipway.launch.verl_changes.{bridge}")


@wrapt.when_imported("torch.nested._internal.ops")
def _cheapen_rows(_module: ModuleType) -> None:
    importlib.import_module("slipway.launch.verl_changes.nested_rows").install()


@wrapt.when_imported("verl.utils.seqlen_balancing")
def _balance_numbers(_module: ModuleType) -> None:
    importlib.import_module("slipway.launch.verl_changes.balancing").install()


@wrapt.when_imported("verl.experimental.agent_loop.agent_loop")
def _cheapen_agent_loops(module: ModuleType) -> None:
    importlib.import_module("slipway.launch.verl_changes.agent_loops").install(module)


@wrapt.when_imported("verl.trainer.ppo.v1.agent_loop_tq")
def _group_puts(module: ModuleType) -> None:
    importlib.import_module("slipway.launch.verl_changes.grouped_puts").install(module)
