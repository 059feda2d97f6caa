"""verl's platform "cpu"."""

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from slipway.cpu.torch_cuda import CURRENT_DEVICE


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """One pretended device a process; answers as `verl.plugin.platform.PlatformCUDA` does."""

    device_name = "cpu"
    vendor_name = "cpu"

    @property
    def device_module(self) -> ModuleType:
        """`torch.cuda`, as `torch_cuda` left it."""
        return torch.cuda

    def is_available(self) -> bool:  # noqa: D102
        return True

    def current_device(self) -> Any:
        """Return what serves as a device and, formatted, as an index; see `CpuDeviceId`."""
        return CURRENT_DEVICE

    def device_count(self) -> int:  # noqa: D102
        return 1

    def set_device(self, device_index: int) -> None:  # noqa: D102
        pass

    def synchronize(self, device_index: int | None = None) -> None:  # noqa: D102
        pass

    def manual_seed(self, seed: int) -> None:  # noqa: D102
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:  # noqa: D102
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:  # noqa: D102
        pass

    def empty_cache(self) -> None:  # noqa: D102
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:  # noqa: D102
        return None, None

    def communication_backend_name(self) -> str:  # noqa: D102
        return "gloo"

    def visible_devices_envvar(self) -> str:  # noqa: D102
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:  # noqa: D102
        yield

    def profiler_start(self) -> None:  # noqa: D102
        pass

    def profiler_stop(self) -> None:  # noqa: D102
        pass

    def ray_resource_name(self) -> str:
        """GPUs that Ray is told of but that do not exist; verl counts no other resource."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:  # noqa: D102
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:  # noqa: D102
        return False

    def cudart(self) -> None:  # noqa: D102
        pass
