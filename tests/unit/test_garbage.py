"""What start-up made is put aside by the collector, a bounded number of times."""

import gc
import subprocess
import sys

import pytest

from slipway.launch.verl_changes import garbage


@pytest.fixture
def freezer(monkeypatch: pytest.MonkeyPatch) -> garbage.SurvivorFreezer:
    monkeypatch.setattr(garbage, "SLOW", 0)
    freezer = garbage.SurvivorFreezer()
    others = gc.callbacks[:]
    gc.callbacks[:] = [freezer]
    yield freezer
    gc.callbacks[:] = others
    gc.unfreeze()


def test_survivors_of_a_slow_full_collection_are_put_aside(freezer):
    gc.unfreeze()
    kept = [[] for _ in range(1000)]
    gc.collect(1)
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert gc.get_freeze_count() > len(kept)
    assert not any(known is kept[0] for known in gc.get_objects())


def test_quick_collections_put_nothing_aside(freezer, monkeypatch):
    monkeypatch.setattr(garbage, "SLOW", 3600)
    gc.unfreeze()
    gc.collect()
    assert gc.get_freeze_count() == 0


def test_it_ends_after_a_few(freezer):
    for _ in range(garbage.FREEZES):
        assert freezer in gc.callbacks
        gc.collect()
    assert freezer not in gc.callbacks


def test_every_process_of_verl_does_so_once():
    code = (
        "import gc, slipway.launch.verl_changes.registration; from slipway.launch.verl_changes import garbage; "
        "garbage.install(); "
        "print(sum(isinstance(callback, garbage.SurvivorFreezer) for callback in gc.callbacks))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
