"""GPUs by name: the vendors' data sheets, and the links between GPUs of a node and between nodes.

Figures are peaks; what a training reaches of them is in `calibration`.
"""

import difflib
from dataclasses import dataclass, replace

from slipway.errors import SlipwayError


@dataclass(frozen=True)
class Gpu:
    """One GPU and its links; bytes, operations and bytes a second."""

    name: str
    memory: float
    """Bytes."""
    bf16: float
    """Dense bf16 operations a second."""
    bandwidth: float
    """Of its own memory."""
    node_link: float
    """To another GPU of the node, in one direction."""
    network: float
    """To a GPU of another node, in one direction: one 400 Gbit/s port a GPU, or 200 where that was usual."""


# Data sheets of NVIDIA (A100, H100, H800, H20, H200, B200, GH200, L40S), as of 2026; SXM unless the name says PCIe.
_TABLE = (
    Gpu("A100-40GB", 40 * 2**30, 312e12, 1.56e12, 300e9, 25e9),
    Gpu("A100-80GB", 80 * 2**30, 312e12, 2.04e12, 300e9, 25e9),
    Gpu("A800-80GB", 80 * 2**30, 312e12, 2.04e12, 200e9, 25e9),
    Gpu("L40S-48GB", 45 * 2**30, 362e12, 0.86e12, 32e9, 25e9),
    Gpu("H20-96GB", 96 * 2**30, 148e12, 4.0e12, 450e9, 50e9),
    # of two that are alike but for their links, `gpu_with_memory` takes the first
    Gpu("H100-80GB", 80 * 2**30, 989e12, 3.35e12, 450e9, 50e9),
    Gpu("H800-80GB", 80 * 2**30, 989e12, 3.35e12, 200e9, 50e9),
    Gpu("H100-PCIe-80GB", 80 * 2**30, 756e12, 2.0e12, 64e9, 25e9),
    Gpu("GH200-96GB", 96 * 2**30, 989e12, 4.0e12, 450e9, 50e9),
    # 143,771 MiB as nvidia-smi shows it (docs/measurements)
    Gpu("H200-141GB", 143_771 * 2**20, 989e12, 4.8e12, 450e9, 50e9),
    Gpu("B200-180GB", 180 * 2**30, 2250e12, 8.0e12, 900e9, 50e9),
)
GPUS = {gpu.name: gpu for gpu in _TABLE}


def gpu_named(name: str) -> Gpu:
    """Return a GPU of the table; raises `SlipwayError` for another name, with the nearest one."""
    if name in GPUS:
        return GPUS[name]
    lower = {known.lower(): known for known in GPUS}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.4)
    hint = f"did you mean {lower[near[0]]}?" if near else ""
    raise SlipwayError(f"no GPU of the name {name} is known; {hint} Known are {', '.join(GPUS)}.")


def gpu_with_memory(gib: float) -> Gpu:
    """Return what is nearest to a GPU of which only the memory is known: the fastest common one of that size."""
    nearest = min(_TABLE, key=lambda gpu: (abs(gpu.memory / 2**30 - gib), -gpu.bf16))
    return replace(nearest, name=f"{gib:g} GiB", memory=gib * 2**30)
