"""Which environments belong to which worker."""

from __future__ import annotations

import pytest
import torch

from torchrl_gpu.envs.workers.slices import SplitTensors, axes, shares


def test_shares_are_alike_and_whole() -> None:
    assert shares(7, 3) == [(0, 2), (2, 2), (4, 3)]
    assert shares(128, 3) == [(0, 32), (32, 48), (80, 48)]
    assert shares(40, 2) == [(0, 16), (16, 24)]
    assert shares(5, 1) == [(0, 5)]


def test_the_axis_of_environments_is_where_sizes_differ() -> None:
    whole = {"height": torch.zeros(6, 4), "motion": torch.zeros(5, 6)}
    part = {"height": torch.zeros(2, 4), "motion": torch.zeros(5, 2)}
    assert axes(whole, part, 6, 2) == {"height": 0, "motion": 1}


@pytest.mark.parametrize(("whole", "part"), [((3,), (3,)), ((6, 6), (2, 2)), ((6, 1), (2,)), ((12,), (4,))])
def test_a_state_without_one_axis_of_environments_is_refused(whole: tuple[int, ...], part: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="want a state whose entries have one axis of environments each, to be split"):
        axes({"x": torch.zeros(whole)}, {"x": torch.zeros(part)}, 6, 2)


def test_parts_are_views() -> None:
    split = SplitTensors({"x": torch.zeros(2, 5)}, {"x": 1}, [(0, 2), (2, 3)], shared=True)
    split.put({"x": torch.arange(10).float().reshape(2, 5)})
    assert split.parts[1]["x"].tolist() == [[2, 3, 4], [7, 8, 9]]
    split.parts[0]["x"].fill_(-1)
    copy = split.copy(torch.device("cpu"))["x"]
    assert copy.tolist() == [[-1, -1, 2, 3, 4], [-1, -1, 7, 8, 9]]
    assert copy.data_ptr() != split.whole["x"].data_ptr()
    assert split.whole["x"].is_shared()
