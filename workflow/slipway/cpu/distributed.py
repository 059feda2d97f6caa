"""Process groups on gloo."""

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist


def install() -> None:
    """Let every process group of this process be a gloo group on the CPU."""
    for name in ("init_process_group", "new_group"):
        wrapped = _on_gloo(getattr(dist, name))
        setattr(dist, name, wrapped)
        setattr(dist.distributed_c10d, name, wrapped)
    dist.barrier = _without(dist.barrier, "device_ids")


def gloo(backend: Any) -> Any:
    """Translate a backend name; verl's `cpu:gloo,cpu:gloo` names a device twice, which torch refuses."""
    if not isinstance(backend, str):
        return backend
    parts = backend.replace("cuda:", "cpu:").replace("nccl", "gloo").split(",")
    return ",".join(dict.fromkeys(parts))


def _on_gloo(create: Callable[..., Any]) -> Callable[..., Any]:
    create = _without(create, "device_id", "pg_options")

    @functools.wraps(create)
    def create_on_gloo(*args: Any, **kwargs: Any) -> Any:
        if "backend" in kwargs:
            kwargs["backend"] = gloo(kwargs["backend"])
        elif create.__name__ == "init_process_group" and args:
            args = (gloo(args[0]), *args[1:])
        return create(*args, **kwargs)

    return create_on_gloo


def _without(function: Callable[..., Any], *arguments: str) -> Callable[..., Any]:
    """Drop keyword arguments that only NCCL understands."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{key: value for key, value in kwargs.items() if key not in arguments})

    return call
