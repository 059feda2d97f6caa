"""Python's full garbage collections, without what start-up made.

An object of an imported module lives as long as its process, and a process of verl has about a million of them. Python
goes through them all in each full collection: a third to two thirds of a second, once or twice a step in the trainer,
the worker and the agent loops, whose answers wait meanwhile. What survives such a collection is therefore put aside
(`gc.freeze`), for the first few of a process; vLLM does the same for its own processes.

What is put aside is still freed when its last reference goes. Only a cycle of objects that was in use then stays
for ever once it is dropped, hence the small number.
"""

import gc
import time

# A full collection that takes longer, in seconds, has start-up's objects to go through.
SLOW = 0.1
# By the end of the first step a process of verl has made two to four of them.
FREEZES = 6


class SurvivorFreezer:
    """Callback of the collector: puts survivors of slow full collections aside, `FREEZES` times at most."""

    def __init__(self) -> None:
        self._began = 0.0
        self._left = FREEZES

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Time a full collection from "start" to "stop" (see `gc.callbacks`), and freeze after a slow one."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = time.perf_counter()
        elif time.perf_counter() - self._began > SLOW:
            gc.freeze()
            self._left -= 1
            if self._left == 0:
                gc.callbacks.remove(self)


def install() -> None:
    """Have this process's collector put survivors aside; once is enough, more often does no harm."""
    if not any(isinstance(callback, SurvivorFreezer) for callback in gc.callbacks):
        gc.callbacks.append(SurvivorFreezer())
