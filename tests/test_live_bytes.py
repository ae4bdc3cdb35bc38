"""The counter of live bytes, by hand."""

from __future__ import annotations

import torch

from torchrl_gpu.live_bytes import LiveBytes


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
    assert counter.peak == 0
    assert len(view) == 2
