"""Fields of the dictionaries that verl passes on unchecked, read from the installed source without importing it.

verl hands `override_transformer_config` and its like to Megatron-core's dataclasses minutes after the GPUs are
held; their field names are known before.
"""

import ast
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# dictionary in verl's config -> (module file in megatron/core, class); the class's bases are followed
_FREE = {
    "override_transformer_config": ("transformer/transformer_config.py", "TransformerConfig"),
    "override_ddp_config": (
        "distributed/distributed_data_parallel_config.py",
        "DistributedDataParallelConfig",
    ),
    "override_optimizer_config": ("optimizer/optimizer_config.py", "OptimizerConfig"),
}
# dictionaries whose keys no dataclass defines
_OPEN = ("engine_kwargs", "ray_init", "ray_kwargs", "apply_chat_template_kwargs", "sampler_kwargs", "custom")
_BASES = {
    "ModelParallelConfig": "model_parallel_config.py",
    "TransformerConfig": "transformer/transformer_config.py",
}


def free_fields(key: str) -> frozenset[str] | None:
    """Return the names allowed below the free dictionary that `key` (dotted) is in.

    None: `key` is in no free dictionary. An empty set: any name is allowed.
    """
    parts = key.split(".")
    for name, (file, cls) in _FREE.items():
        if name in parts[:-1]:
            return _dataclass_fields(file, cls)
    return frozenset() if any(name in parts[:-1] for name in _OPEN) else None


@cache
def _dataclass_fields(file: str, cls: str) -> frozenset[str]:
    return frozenset(_walk(_megatron_core() / file, cls))


def _walk(path: Path, cls: str) -> Iterator[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == cls:
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield statement.target.id
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in _BASES:
                    yield from _walk(_megatron_core() / _BASES[base.id], base.id)


def _megatron_core() -> Path:
    # find_spec on a dotted name would import megatron.core, and with it torch
    found = importlib.util.find_spec("megatron")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("megatron-core is not installed")
    return Path(next(iter(found.submodule_search_locations))) / "core"
