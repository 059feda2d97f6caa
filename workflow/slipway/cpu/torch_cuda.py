"""`torch.cuda`, and device arguments that mean CUDA, answered for the CPU.

Megatron-core names the device `"cuda"` or `torch.cuda.current_device()` in some thirty places and offers no
switch. Replacing torch's own functions is broad, but it leaves Megatron and verl as they are installed. A
`TorchFunctionMode` would be tidier and does not reach the other threads of a Ray actor or autograd's.

Two of torch's lookup tables index its functions by identity and are built on first use. They have to be built
before any function is replaced (`_fill_identity_tables`).
"""

import contextlib
import functools
import resource
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

_CPU = torch.device("cpu")


class CpuDeviceId(str):
    """The current device: `"cpu"` as a device, `0` when formatted, since verl writes `f"{name}:{id}"`."""

    __slots__ = ()

    def __new__(cls) -> "CpuDeviceId":
        """Return the one value there is."""
        return super().__new__(cls, "cpu")

    def __format__(self, _spec: str) -> str:
        return "0"


CURRENT_DEVICE = CpuDeviceId()


class NullStream:
    """A CUDA stream where all work is done when the call returns."""

    device = _CPU

    def __init__(self, *_args: object, **_kwargs: object) -> None: ...

    def wait_stream(self, _stream: object) -> None:
        """Nothing to wait for."""

    def wait_event(self, _event: object) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """All work is done."""
        return True

    def record_event(self, event: "WallClockEvent | None" = None) -> "WallClockEvent":
        """Record the event, or a new one, now."""
        event = event or WallClockEvent()
        event.record()
        return event

    def __enter__(self) -> "NullStream":
        return self

    def __exit__(self, *_exc: object) -> None: ...


class WallClockEvent:
    """A CUDA event which remembers when it was recorded."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        self._recorded = 0.0

    def record(self, _stream: object = None) -> None:
        """Remember the time."""
        self._recorded = time.perf_counter()

    def wait(self, _stream: object = None) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """All work is done."""
        return True

    def elapsed_time(self, end: "WallClockEvent") -> float:
        """Milliseconds from this event to `end`."""
        return (end._recorded - self._recorded) * 1000.0


class _DeviceProperties:
    major = minor = 0
    multi_processor_count = 1
    name = "cpu"
    total_memory = 16 << 30


def on_cpu(device: Any) -> Any:
    """Return the CPU for a device argument that means CUDA; anything else unchanged."""
    if isinstance(device, CpuDeviceId):
        return _CPU
    if isinstance(device, bool) or device is None:
        return device
    if isinstance(device, int):  # a device index
        return _CPU
    if isinstance(device, str):
        return _CPU if device.split(":")[0] == "cuda" else device
    if isinstance(device, torch.device) and device.type == "cuda":
        return _CPU
    return device


def install() -> None:
    """Replace `torch.cuda`'s functions and redirect device arguments, in this process."""
    _fill_identity_tables()
    _answer_for_cuda()
    _redirect_factories()
    _redirect_moves()
    _name_tensor_types_for_megatron()


def redirect_megatron_rng(module: ModuleType) -> None:
    """Let Megatron's random-state tracker save and restore the CPU's generator."""

    def get_state(device: object = "cuda", clone: bool = False, graph_safe: bool = False) -> torch.Tensor:
        return torch.get_rng_state()

    def set_state(state: torch.Tensor, device: object = -1, graph_safe: bool = False) -> None:
        torch.set_rng_state(state)

    module._get_cuda_rng_state = get_state  # type: ignore[attr-defined]
    module._set_cuda_rng_state = set_state  # type: ignore[attr-defined]


def _fill_identity_tables() -> None:
    import torch._dynamo.trace_rules
    import torch.utils._device

    # Left for later, dynamo finds one wrapper under two names ("Duplicate torch object") ...
    torch._dynamo.trace_rules.get_torch_obj_rule_map()
    # ... and `with torch.device("meta")` does not recognise the factories, silently.
    torch.utils._device._device_constructors()


def _answer_for_cuda() -> None:
    def nothing(*_args: object, **_kwargs: object) -> None: ...

    def zero(*_args: object, **_kwargs: object) -> int:
        return 0

    def seed(value: int) -> None:
        torch.default_generator.manual_seed(int(value))

    def set_state(state: torch.Tensor, *_args: object, **_kwargs: object) -> None:
        torch.set_rng_state(state)

    def peak_memory(*_args: object, **_kwargs: object) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def no_context(*_args: object, **_kwargs: object) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    def lazy_call(call: Callable[[], None], **_kwargs: object) -> None:
        call()

    answers: dict[str, Any] = {
        "current_device": lambda: CURRENT_DEVICE,
        "device_count": lambda: 1,
        "get_device_name": lambda *_args: "cpu",
        "get_device_properties": lambda *_args: _DeviceProperties,
        "get_device_capability": lambda *_args: (0, 0),
        "Stream": NullStream,
        "Event": WallClockEvent,
        "current_stream": NullStream,
        "default_stream": NullStream,
        "stream": no_context,
        "device": no_context,
        "memory_allocated": zero,
        "memory_reserved": zero,
        "max_memory_allocated": peak_memory,
        "max_memory_reserved": peak_memory,
        "memory_stats": lambda *_args, **_kwargs: {},
        "mem_get_info": lambda *_args: (8 << 30, 16 << 30),
        "manual_seed": seed,
        "manual_seed_all": seed,
        "get_rng_state": lambda *_args, **_kwargs: torch.get_rng_state(),
        "set_rng_state": set_state,
        "_lazy_call": lazy_call,
    }
    answers |= dict.fromkeys(
        (
            "set_device",
            "synchronize",
            "empty_cache",
            "ipc_collect",
            "reset_peak_memory_stats",
            "reset_max_memory_allocated",
            "_lazy_init",
        ),
        nothing,
    )
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    for name in ("get_rng_state", "set_rng_state"):
        setattr(torch.cuda.random, name, answers[name])
    for name in ("range_push", "range_pop"):
        setattr(torch.cuda.nvtx, name, nothing)


def _redirect_factories() -> None:
    """Factories get `device="cuda"` and `pin_memory=True`, which needs CUDA as well."""

    def redirect(factory: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(factory)
        def on_cpu_factory(*args: Any, **kwargs: Any) -> Any:
            if "device" in kwargs:
                kwargs["device"] = on_cpu(kwargs["device"])
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            return factory(*args, **kwargs)

        return on_cpu_factory

    names = (
        "tensor as_tensor zeros ones empty full arange linspace eye rand randn randint randperm empty_strided "
        "zeros_like ones_like empty_like full_like rand_like randn_like"
    )
    for name in names.split():
        setattr(torch, name, redirect(getattr(torch, name)))
    for name in ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"):
        setattr(torch.Tensor, name, redirect(getattr(torch.Tensor, name)))


def _redirect_moves() -> None:
    def redirect(to: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(to)
        def to_cpu(self: Any, *args: Any, **kwargs: Any) -> Any:
            if args:
                args = (on_cpu(args[0]), *args[1:])
            if "device" in kwargs:
                kwargs["device"] = on_cpu(kwargs["device"])
            return to(self, *args, **kwargs)

        return to_cpu

    def stay(self: Any, *_args: object, **_kwargs: object) -> Any:
        return self

    for owner in (torch.Tensor, torch.nn.Module):
        setattr(owner, "to", redirect(owner.to))  # noqa: B010  (a method is assigned to, which mypy refuses)
        setattr(owner, "cuda", stay)  # noqa: B010
    setattr(torch.Tensor, "pin_memory", stay)  # noqa: B010
    setattr(torch.Tensor, "record_stream", lambda self, stream: None)  # noqa: B010


def _name_tensor_types_for_megatron() -> None:
    """Megatron's optimizer sorts parameters by `param.type()` and knows `torch.cuda.*Tensor` only."""
    original = torch.Tensor.type
    sorted_types = {f"torch.{name}": f"torch.cuda.{name}" for name in ("FloatTensor", "HalfTensor", "BFloat16Tensor")}

    @functools.wraps(original)
    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        if args or kwargs or answer not in sorted_types:
            return answer
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return sorted_types[answer] if caller.startswith("megatron.") else answer

    setattr(torch.Tensor, "type", type_)  # noqa: B010
