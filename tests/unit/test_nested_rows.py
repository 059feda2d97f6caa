"""Rows of nested tensors are the same, and gradients flow, after `nested_rows` of verl_changes is installed."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch.nested._internal import ops

from slipway.launch import EXTERNAL_MODULES, REGISTRATION
from slipway.launch.verl_changes import nested_rows

# the second is empty
ROWS = [torch.arange(12.0).reshape(6, 2), torch.ones(0, 2), torch.full((3, 2), 5.0)]


@pytest.fixture
def installed() -> Iterator[None]:
    before = ops.JAGGED_OPS_TABLE[torch.ops.aten.select.int]
    nested_rows.install()
    yield
    ops.JAGGED_OPS_TABLE[torch.ops.aten.select.int] = before


def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def test_each_row_is_what_was_put_in_and_a_view(installed):
    nested = jagged(ROWS)
    for index, row in enumerate(ROWS):
        assert torch.equal(nested[index], row)
        assert torch.equal(nested[index - len(ROWS)], row)
    nested[2].fill_(7)
    assert torch.equal(nested.unbind()[2], torch.full((3, 2), 7.0))


def test_a_row_is_not_taken_by_unbinding(installed, monkeypatch):
    nested = jagged(ROWS)

    def refused(*_args, **_kwargs):
        raise AssertionError("all rows were unbound for one")

    monkeypatch.setitem(ops.JAGGED_OPS_TABLE, torch.ops.aten.unbind.int, refused)
    assert torch.equal(nested[0], ROWS[0])


def test_transposed_rows(installed):
    nested = jagged(ROWS).transpose(1, 2)
    assert torch.equal(nested[2], ROWS[2].T)


def test_other_selections_are_torchs_own(installed):
    nested = jagged(ROWS)
    with pytest.raises(IndexError):
        nested[3]
    # a column of all rows
    assert torch.equal(nested.select(2, 1)[0], ROWS[0][:, 1])
    # rows with holes between them
    values = torch.arange(10.0)
    holes = torch.nested.nested_tensor_from_jagged(
        values, offsets=torch.tensor([0, 4, 10]), lengths=torch.tensor([2, 3])
    )
    assert torch.equal(holes[1], torch.tensor([4.0, 5.0, 6.0]))


def test_gradients_are_those_of_the_rows(installed):
    rows = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
    (jagged(rows)[1] * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert torch.equal(rows[1].grad, torch.tensor([1.0, 2.0, 3.0]))
    assert rows[0].grad is None or not rows[0].grad.any()


def test_a_process_of_a_training_has_it():
    said = subprocess.run(
        [
            *(sys.executable, "-c"),
            f"import {REGISTRATION}, torch; torch.nested.as_nested_tensor([torch.ones(2)], layout=torch.jagged)[0]\n"
            "from torch.nested._internal import ops\n"
            "print(type(ops.JAGGED_OPS_TABLE[torch.ops.aten.select.int]).__module__)",
        ],
        env=os.environ | {EXTERNAL_MODULES: REGISTRATION},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.strip() == "slipway.launch.verl_changes.nested_rows"
