"""Loaded by every process that imports verl (`VERL_USE_EXTERNAL_MODULES`): registers our trainer where one is built."""

import importlib
from types import ModuleType

import wrapt


# Importing a trainer takes seconds, and most of verl's processes need none.
@wrapt.when_imported("verl.trainer.ppo.v1")
def _register(_module: ModuleType) -> None:
    importlib.import_module("slipway.launch.trainer")
