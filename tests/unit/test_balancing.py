"""Batches are divided as verl divides them, from a tensor's numbers."""

import random

import pytest


@pytest.mark.parametrize(("k_partitions", "equal_size"), [(1, True), (4, True), (4, False)])
def test_partitions_of_a_tensor_are_those_of_verl(k_partitions, equal_size):
    import torch
    from verl.utils import seqlen_balancing

    import slipway.launch.verl_changes.registration  # noqa: F401
    from slipway.launch.verl_changes import balancing

    draw = random.Random(k_partitions)
    workloads = torch.tensor([draw.randint(100, 4000) for _ in range(64)])
    verls = balancing._by_numbers(workloads, k_partitions, equal_size)
    assert seqlen_balancing.karmarkar_karp is balancing.karmarkar_karp
    assert seqlen_balancing.get_seqlen_balanced_partitions(workloads, k_partitions, equal_size) == [
        sorted(partition) for partition in verls
    ]


def test_numbers_are_what_is_compared(monkeypatch):
    import torch

    from slipway.launch.verl_changes import balancing

    given = []
    monkeypatch.setattr(balancing, "_by_numbers", lambda numbers, *_: given.extend(numbers) or [[0, 1]])
    balancing.karmarkar_karp(torch.tensor([3, 5]), 1, True)
    assert all(type(number) is int for number in given)
    assert given == [3, 5]
