"""Training steps by their number, and suites as batches."""

from __future__ import annotations

import pytest

from torchrl_gpu.training.loaders import StepLoader, single_batch


def test_an_epoch_of_steps() -> None:
    steps = StepLoader(3)
    assert len(steps) == 3
    assert [list(steps) for _ in range(2)] == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_steps_go_on_in_the_middle_of_an_epoch(stop: int) -> None:
    steps, fresh = iter(started := StepLoader(3)), StepLoader(3)
    for _ in range(stop):
        next(steps)
    fresh.load_state_dict(started.state_dict())
    assert list(fresh) == [1, 2, 3][stop:]
    assert list(fresh) == [1, 2, 3]


def test_a_suite_is_one_batch_as_it_is() -> None:
    suite = object()
    assert [list(loader) for loader in [single_batch(suite)] * 2] == [[suite], [suite]]
    assert len(single_batch(suite)) == 1
