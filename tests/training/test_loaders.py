"""The clock of training."""

from __future__ import annotations

import pytest

from torchrl_gpu.training.loaders import Ticks, once


def test_an_epoch_of_ticks() -> None:
    ticks = Ticks(3)
    assert len(ticks) == 3
    assert [list(ticks) for _ in range(2)] == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_ticks_go_on_in_the_middle_of_an_epoch(stop: int) -> None:
    ticks, fresh = iter(started := Ticks(3)), Ticks(3)
    for _ in range(stop):
        next(ticks)
    fresh.load_state_dict(started.state_dict())
    assert list(fresh) == [1, 2, 3][stop:]
    assert list(fresh) == [1, 2, 3]


def test_a_suite_is_one_batch_as_it_is() -> None:
    suite = object()
    assert [list(loader) for loader in [once(suite)] * 2] == [[suite], [suite]]
    assert len(once(suite)) == 1
