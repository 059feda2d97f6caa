"""Training jobs: submit or re-attach, run verl inside the allocation, watch, and judge by what was written.

This file holds what other rooms' callers need to know without importing submitit or verl.
"""

from collections.abc import Mapping
from typing import Any

# Name under which our trainer is registered with verl, and the module that verl's processes load for that.
TRAINER = "slipway_sync"
REGISTRATION = "slipway.launch.verl_changes.registration"
# Modules, separated by commas, that verl imports wherever it is imported itself.
EXTERNAL_MODULES = "VERL_USE_EXTERNAL_MODULES"

# verl keys of every training that Slipway launches, on any device.
VERL_SETTINGS: dict[str, Any] = {
    "trainer.v1.trainer_mode": TRAINER,
    "trainer.v1.sampler.custom_sampler.path": "pkg://slipway.launch.verl_changes.sampler",
    "trainer.v1.sampler.custom_sampler.name": "OrderedReplayBuffer",
}


def with_registration(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of processes that import verl, with the module that registers our trainer."""
    modules = [environment.get(EXTERNAL_MODULES, ""), REGISTRATION]
    return dict(environment) | {EXTERNAL_MODULES: ",".join(filter(None, modules))}
