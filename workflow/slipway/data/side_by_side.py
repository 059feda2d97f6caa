"""Work in threads, for what lets go of the interpreter's lock: tokenizers, Arrow and numpy on large arrays."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield what `function` makes of each item, in the order of `items`, which the caller's thread goes through.

    Only `threads` + 1 items and results are held at a time, unlike with `ThreadPoolExecutor.map`, which takes all items
    at once. Raises what `function` raises, at its item's turn.
    """
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
