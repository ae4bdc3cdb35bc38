"""The counter of live bytes, by hand."""

from __future__ import annotations

import torch

from torchrl_gpu.envs.memory import LiveBytes


def test_bytes_by_hand() -> None:
    with LiveBytes() as counter:
        kept = torch.zeros(10)
        for _ in range(3):
            gone = kept + 1
        assert (counter.live, counter.peak) == (80, 120)  # the next sum is made before the last one is freed
        del gone
        assert counter.live == 40
        counter.restart_peak()
        view = kept[:5]
        assert counter.peak == 40
    assert len(view) == 5


def test_what_was_there_before_is_not_counted() -> None:
    before = torch.zeros(100)
    with LiveBytes() as counter:
        before.add_(1)
        view = before[:2]
        assert (counter.live, counter.peak) == (0, 0)
    assert len(view) == 2


def test_the_counter_counts_storages_once() -> None:
    with LiveBytes() as memory:
        a = torch.zeros(10)
        b = a.view(2, 5)[1:]
        assert memory.live == 40
        del a
        assert memory.live == 40  # a view keeps all of it
        del b
        assert memory.live == 0
        assert memory.peak == 40


def test_the_counter_follows_what_grows() -> None:
    with LiveBytes() as memory:
        x = torch.empty(1)
        x.resize_(100)
        assert memory.live == 400
