"""What finishes while others are being stored is stored together; nobody waits longer, or fails, for another."""

import asyncio

import pytest

torch = pytest.importorskip("torch")

import slipway.launch.verl_changes.registration  # noqa: F401, E402  before verl's module: its import is what installs
from slipway.launch.verl_changes.grouped_puts import GroupedPuts, put  # noqa: E402


class Memory:
    """A store that takes a moment, keeps what it got, and refuses rows named `bad`."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, list[str]]] = []
        self.rows: dict[str, object] = {}

    async def store(self, keys, partition_id, fields, tags):
        await asyncio.sleep(0.001)
        if "bad" in keys:
            raise ValueError("bad")
        assert len(keys) == len(tags) == fields.batch_size[0]
        self.stored.append((partition_id, keys))
        for place, key in enumerate(keys):
            self.rows[key] = (fields[place]["ids"].tolist(), tags[place])


def row(length: int, **more: object) -> dict:
    return {"ids": torch.arange(length), "answer": "yes"} | more


def puts_of(memory: Memory, rows: dict[str, dict], partition: str = "train") -> list[BaseException | None]:
    async def all_of_them():
        puts = GroupedPuts(memory.store)
        return await asyncio.gather(
            *(puts.put([key], partition, [fields], [{"of": key}]) for key, fields in rows.items()),
            return_exceptions=True,
        )

    return asyncio.run(all_of_them())


def test_those_that_wait_are_stored_together_each_as_it_was():
    memory = Memory()
    rows = {f"r{number}": row(number + 1) for number in range(20)}
    assert puts_of(memory, rows) == [None] * 20
    # the first begins once all have come: a put yields to its siblings
    assert [len(keys) for _, keys in memory.stored] == [20]
    assert memory.rows == {key: (fields["ids"].tolist(), {"of": key}) for key, fields in rows.items()}


def test_what_comes_while_others_are_stored_goes_next():
    memory = Memory()

    async def later():
        puts = GroupedPuts(memory.store)
        first = asyncio.create_task(puts.put(["a"], "train", [row(3)], [{}]))
        await asyncio.sleep(0.0005)
        others = [puts.put([key], "train", [row(3)], [{}]) for key in "bc"]
        await asyncio.gather(first, *others)
        await puts.put(["d"], "train", [row(1)], [{}])

    asyncio.run(later())
    assert [keys for _, keys in memory.stored] == [["a"], ["b", "c"], ["d"]]


@pytest.mark.parametrize(
    "other",
    [
        {"ids": torch.zeros(3), "answer": "no"},
        {"ids": torch.arange(3)},
        row(3, experts=torch.zeros(3, 2)),
        row(3, experts=torch.zeros(4, 2)),
    ],
    ids=["another type", "a field less", "a matrix", "a longer matrix"],
)
def test_rows_of_another_form_are_stored_by_themselves(other):
    memory = Memory()
    assert puts_of(memory, {"a": row(3), "b": other, "c": row(2)}) == [None] * 3
    assert sorted(keys for _, keys in memory.stored) == [["a", "c"], ["b"]]


def test_ones_fault_is_its_own():
    memory = Memory()
    a, bad, c = puts_of(memory, {"a": row(1), "bad": row(2), "c": row(3)})
    assert a is c is None
    assert isinstance(bad, ValueError)
    assert sorted(memory.rows) == ["a", "c"]


def test_verls_workers_store_so():
    from verl.trainer.ppo.v1 import agent_loop_tq

    assert agent_loop_tq.tq.async_kv_batch_put is put
    assert agent_loop_tq.list_of_dict_to_tensordict([row(2)])[0]["answer"] == "yes"
