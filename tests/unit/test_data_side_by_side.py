"""Work of prepare_data on several cores: nothing of it may show in the order or in memory."""

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.config.schema import Source
from slipway.data.pool import Pool
from slipway.data.side_by_side import in_order
from slipway.data.sources import open_source


def test_results_come_in_the_order_of_the_items() -> None:
    second_is_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second_is_done.wait(30)
        elif item == 1:
            second_is_done.set()
        return item * item

    assert list(in_order(work, range(10), 2)) == [item * item for item in range(10)]


def test_only_a_few_items_are_taken_ahead() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    results = in_order(str, items(), 2)
    assert next(results) == "0"
    assert len(taken) == 3
    results.close()  # type: ignore[attr-defined]


def test_a_fault_in_a_thread_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda item: 1 // item, [2, 1, 0, 3], 2))


def test_prompts_may_be_counted_on_all_cores_after_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    (tmp_path / "a.jsonl").write_text('{"question": "one?", "answer": "1"}\n')
    source = open_source(Source(path=str(tmp_path / "a.jsonl")), "key", 0, 0)
    pool = Pool(source, {"task": "math", "seed": 0, "columns": {}}, None, tmp_path / "pool", 1)
    pool.add(source.blocks())
    # a child without an environment of its own gets what libraries of this process read, which os.environ need not be
    assert subprocess.run(["printenv", "TOKENIZERS_PARALLELISM"], check=False).returncode == 1
