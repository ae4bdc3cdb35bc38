"""Sets of objects that no run has trained on, and catalogues that are made once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchrl_gpu.envs.packing.items import ItemSequences, ProceduralSolids, RandomBoxes
from torchrl_gpu.envs.packing.types import Bin, Catalogue
from torchrl_gpu.evaluation.packing.objects import HARD_SCALE, Remembered, easy, hard

BIN = Bin((0.4, 0.4, 0.3), (20, 20), 2)


def test_easy_objects_are_others_of_the_same_kind() -> None:
    trained = ProceduralSolids(12, 0.05, 0.10, seed=1)
    other = easy(trained, 2)
    assert isinstance(other, ProceduralSolids)
    assert (other.num_objects, other.min_size, other.max_size) == (12, 0.05, 0.10)
    same = [a.shape == b.shape for a, b in zip(trained.solids(0.005), other.solids(0.005), strict=True)]
    assert sum(same) < 3


def test_objects_trained_on_are_refused() -> None:
    with pytest.raises(ValueError, match="evaluate: --seed must differ from that of the objects trained on; got 7"):
        easy(ProceduralSolids(seed=7), 7)


def test_hard_objects_are_concave_and_larger() -> None:
    harder = hard(ProceduralSolids(8, 0.05, 0.10, seed=1), 2)
    assert isinstance(harder, ProceduralSolids)
    assert (harder.min_size, harder.max_size) == (pytest.approx(0.05 * HARD_SCALE), pytest.approx(0.10 * HARD_SCALE))
    for item in range(8):
        kind = harder.solid(item, BIN).name
        assert kind == f"{('bowl', 'mug', 'l_shape', 'u_shape')[item % 4]}-{item}"
        voxels = harder.solids(0.005)[item]
        assert voxels.mean() < 0.85  # of the bounding box, which a convex object of these kinds would fill


def test_hard_objects_of_other_kinds() -> None:
    harder = hard(ProceduralSolids(3), 2, ["bowl"])
    assert [harder.solid(item, BIN).name for item in range(3)] == ["bowl-0", "bowl-1", "bowl-2"]
    with pytest.raises(ValueError, match=r"ProceduralSolids: shapes must be among bowl, .*; got 'cup'"):
        hard(ProceduralSolids(3), 2, ["cup"])
    with pytest.raises(ValueError, match="the set hard wants a config with ProceduralSolids; got RandomBoxes"):
        hard(RandomBoxes(1, 2), 2)


class Counting(ProceduralSolids):
    """Counts how often it builds."""

    built = 0

    def build(
        self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int
    ) -> tuple[Catalogue, ItemSequences]:
        self.built += 1
        return super().build(bin_, orientations, num_items, num_envs)


def test_a_catalogue_is_made_once() -> None:
    source = Counting(4)
    items = Remembered(source, torch.device("cpu"))
    first, stream = items.build(BIN, "yaw", 5, 1)
    second, _ = items.build(BIN, "yaw", 5, 8)
    assert second is first
    assert source.built == 1
    plain, expected = source.build(BIN, "yaw", 5, 8)
    assert first.top is not None
    assert plain.top is not None
    assert torch.equal(first.top, plain.top)
    assert stream == expected
    assert first.steady is not None
    items.build(BIN, "axis", 5, 1)
    assert source.built == 3
    assert np.array_equal(items.solid(2, BIN).vertices, source.solid(2, BIN).vertices)


def test_boxes_are_refused() -> None:
    with pytest.raises(ValueError, match="evaluate: want a config with irregular objects; got RandomBoxes"):
        Remembered(RandomBoxes(1, 2), torch.device("cpu"))
