"""When a trainer has to stop before its job is ended."""

import time

import pytest

from slipway.launch import stop
from slipway.launch.stop import StopOrder, StopWatch


@pytest.fixture
def file(tmp_path):
    return tmp_path / "stop.json"


def watch_after(file, step_seconds: float, save_seconds: float | None = None) -> StopWatch:
    watch = StopWatch(file)
    watch.step_begins()
    watch._step_began -= step_seconds
    if save_seconds is not None:
        watch.saved(save_seconds)
    return watch


def test_without_a_job_nothing_ever_stops(monkeypatch):
    monkeypatch.delenv(stop.VARIABLE, raising=False)
    assert not StopWatch.from_environment().must_stop()


def test_without_an_order_nothing_stops(file):
    assert not watch_after(file, 100).must_stop()
    assert not stop.was_obeyed(file)


@pytest.mark.parametrize(
    ("seconds_left", "step", "save", "stops"),
    [
        (1000, 100, 10, False),
        (150, 100, 10, True),  # a step of 100 s and a checkpoint of 10 s do not fit into 130 s with a margin
        (250, 100, 10, False),
        (250, 100, 100, True),
    ],
)
def test_the_last_step_leaves_time_for_its_checkpoint(file, seconds_left, step, save, stops):
    stop.give(StopOrder(deadline=time.time() + seconds_left), file)
    assert watch_after(file, step, save).must_stop() is stops
    assert stop.was_obeyed(file) is stops


def test_before_the_first_checkpoint_the_jobs_guess_counts(file):
    stop.give(StopOrder(deadline=time.time() + 100, save_seconds=70), file)
    assert watch_after(file, 1).must_stop()
    stop.give(StopOrder(deadline=time.time() + 100, save_seconds=5), file)
    assert not watch_after(file, 1).must_stop()


def test_an_order_to_stop_now_is_obeyed_whatever_the_time(file):
    stop.give(StopOrder(now=True), file)
    assert watch_after(file, 0.1).must_stop()
