"""The agent loop of each response, made without composing a config for it.

verl makes them by `hydra.utils.instantiate`, which merges the arguments into a config and copies it: 3.9 ms for each
response, in which all others of the worker wait, against 0.1 ms for the loop itself (benchmarks/agent_loops.py). With
1,024 prompts, 16 responses and eight workers that is eight seconds a step.
"""

from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import hydra


def instantiate(config: Mapping[str, Any], **arguments: Any) -> Any:
    """Make an agent loop: by calling its class where its config names nothing else, as verl's own do."""
    if set(config) == {"_target_"}:
        return hydra.utils.get_class(config["_target_"])(**arguments)
    return hydra.utils.instantiate(config=config, **arguments)


def install(module: ModuleType) -> None:
    """Let verl's module of agent loop workers, which uses hydra for nothing else, make them so."""
    module.hydra = SimpleNamespace(utils=SimpleNamespace(instantiate=instantiate))  # type: ignore[attr-defined]
