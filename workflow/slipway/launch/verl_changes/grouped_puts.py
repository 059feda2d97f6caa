"""Responses are stored in TransferQueue together: all that finish while others are being stored.

verl's agent loop workers store each by itself, which costs five messages, as many sockets and ten milliseconds of a
core: more than anything else of a short response, and its siblings wait for it (benchmarks/grouped_puts.py).
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import transfer_queue as tq
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

Row = dict[str, Any]
Store = Callable[..., Awaitable[Any]]


@dataclass
class _Waiting:
    """What one agent loop wants to store; `done` once it is."""

    keys: list[str]
    rows: list[Row]
    tags: list[dict[str, Any]]
    done: "asyncio.Future[None]"


@dataclass
class GroupedPuts:
    """Stores rows of equal form together; a put returns once its own rows are stored, and raises for them alone."""

    store: Store
    """TransferQueue's `async_kv_batch_put`."""
    _waiting: dict[Hashable, list[_Waiting]] = field(default_factory=dict)
    _tasks: "dict[Hashable, asyncio.Task[None]]" = field(default_factory=dict)

    async def put(self, keys: list[str], partition_id: str, fields: list[Row], tags: Sequence[dict[str, Any]]) -> None:
        """Store rows under their keys; the arguments are TransferQueue's, but for `fields`, which are rows."""
        form = _form(fields[0])
        group = partition_id, form
        if any(_form(row) != form for row in fields):
            await self._store(partition_id, keys, fields, list(tags))
            return
        mine = _Waiting(keys, fields, list(tags), asyncio.get_running_loop().create_future())
        self._waiting.setdefault(group, []).append(mine)
        if group not in self._tasks:
            self._tasks[group] = asyncio.create_task(self._store_waiting(group, partition_id))
        await mine.done

    async def _store_waiting(self, group: Hashable, partition_id: str) -> None:
        try:
            while puts := self._waiting.pop(group, None):
                await self._store_together(partition_id, puts)
        finally:
            del self._tasks[group]

    async def _store_together(self, partition_id: str, puts: list[_Waiting]) -> None:
        try:
            await self._store(
                partition_id,
                [key for put in puts for key in put.keys],
                [row for put in puts for row in put.rows],
                [tag for put in puts for tag in put.tags],
            )
        except Exception as fault:
            if len(puts) == 1:
                _end(puts[0], fault)
                return
            # one's fault is not the others'; what was stored already is stored again
            for put in puts:
                await self._store_together(partition_id, [put])
        else:
            for put in puts:
                _end(put, None)

    async def _store(self, partition_id: str, keys: list[str], rows: list[Row], tags: list[dict[str, Any]]) -> None:
        fields = list_of_dict_to_tensordict(rows)
        await self.store(keys=keys, partition_id=partition_id, fields=fields, tags=tags)


def _form(row: Row) -> Hashable:
    """Tell which rows one nested tensor a field can hold: those that differ in the length of vectors only."""
    return tuple((name, _form_of_value(value)) for name, value in row.items())


def _form_of_value(value: Any) -> Hashable:
    if not isinstance(value, torch.Tensor):
        return None
    return value.dtype, value.dim() if value.dim() == 1 else tuple(value.shape)


def _end(put: _Waiting, fault: Exception | None) -> None:
    if put.done.done():  # nobody waits for it any more
        return
    if fault is None:
        put.done.set_result(None)
    else:
        put.done.set_exception(fault)


# of a worker's process
_puts = GroupedPuts(tq.async_kv_batch_put)


async def put(keys: list[str], fields: list[Row], tags: Sequence[dict[str, Any]], partition_id: str) -> None:
    """Store rows in this process's TransferQueue."""
    await _puts.put(keys, partition_id, fields, tags)


def install(module: ModuleType) -> None:
    """Let verl's module of agent loop workers store so: rows stay rows until they are stored."""
    used = SimpleNamespace(init=tq.init, async_kv_put=tq.async_kv_put, async_kv_batch_put=put)
    module.tq = used  # type: ignore[attr-defined]
    module.list_of_dict_to_tensordict = list  # type: ignore[attr-defined]
