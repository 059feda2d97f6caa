"""Where the device-hours of a training went."""

import json
import os

import pytest

from slipway.launch import checkpoints, segments
from slipway.launch.ledger import entries_of, write_ledger


@pytest.fixture
def train_folder(tmp_path):
    """Two segments: steps 1-5, of which 4 were saved; then 5 and 6."""
    train = tmp_path / "run/train"
    record(train, 1, resumed_from=0, steps=[1, 2, 3, 4, 5], started=1000.0, logged=1090.0, ended=1100.0, status=-9)
    record(train, 2, resumed_from=4, steps=[5, 6], started=2000.0, logged=2050.0, ended=2055.0, status=0)
    return train


def record(train, number, resumed_from, steps, started, logged, ended, status):
    """Write a segment whose steps took 10 s; every second one was saved, in 2 of these seconds."""
    folder = segments.folder_of(train, number)
    folder.mkdir(parents=True)
    segment = segments.Segment(number, "7", "n1", resumed_from, started, ended, status, max(steps))
    (folder / "segment.json").write_text(json.dumps(segment.__dict__))
    saved = {"timing_s/save_checkpoint": 2.0}
    rows = [{"step": s, "data": {"timing_s/step": 10.0} | (saved if s % 2 == 0 else {})} for s in steps]
    file = folder / "metrics.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(file, (logged, logged))


def test_every_second_is_accounted_for_once(train_folder):
    first, second = entries_of(train_folder, {("7", 0): 30.0, ("7", 1): 5.0}, saved=6)
    assert (first.queued, first.training, first.saving, first.lost) == (30.0, 36.0, 4.0, 10.0)
    assert (first.starting, first.ending) == (40.0, 10.0)
    assert (second.queued, second.training, second.saving, second.lost) == (5.0, 18.0, 2.0, 0.0)
    for entry, held in ((first, 100.0), (second, 55.0)):
        assert entry.starting + entry.training + entry.saving + entry.lost + entry.ending == pytest.approx(held)
    assert [first.ended_by, second.ended_by] == ["failure", "finished"]


def test_spans_are_in_the_order_in_which_time_passed(train_folder):
    first, second = entries_of(train_folder, {("7", 0): 30.0}, saved=6)
    assert first.spans == [
        ("queued", 30.0), ("starting", 40.0), ("training", 18.0), ("saving", 2.0), ("training", 18.0), ("saving", 2.0),
        ("lost", 10.0), ("ending", 10.0),
    ]  # fmt: skip
    assert second.spans == [("starting", 30.0), ("training", 18.0), ("saving", 2.0), ("ending", 5.0)]
    assert (first.started, first.first_step, first.last_step, first.kept_step) == (1000.0, 1, 5, 4)


def test_what_a_failed_training_had_not_saved_is_lost(train_folder):
    *_, last = entries_of(train_folder, {}, saved=4)
    assert (last.training, last.saving, last.lost) == (0.0, 0.0, 20.0)


def test_totals_are_hours_of_all_devices(train_folder):
    (train_folder / "checkpoints/global_step_6").mkdir(parents=True)
    (train_folder / "checkpoints" / checkpoints.LATEST).write_text("6")
    write_ledger(train_folder, train_folder.parent, devices=16, on_slurm=False)
    ledger = json.loads((train_folder.parent / "ledger.json").read_text())
    assert ledger["totals"]["training_hours"] == pytest.approx((36 + 18) * 16 / 3600, abs=1e-3)
    assert ledger["totals"]["lost_hours"] == pytest.approx(10 * 16 / 3600, abs=1e-3)
