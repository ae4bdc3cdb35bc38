"""Random boxes and boxes cut from a full bin."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from torchrl_gpu.envs.packing.items import CutBoxes, RandomBoxes
from torchrl_gpu.envs.packing.items.boxes import box_catalogue
from torchrl_gpu.envs.packing.types import Bin

BPP10 = Bin((10.0, 10.0, 10.0), (10, 10))
# Cells of half a metre, 6 of them high.
HALF = Bin((2.5, 2.0, 3.0), (5, 4))


@pytest.mark.parametrize(("most", "step", "wanted"), [(5, 1, (2, 3, 4, 5)), (7, 2, (2, 4, 6))])
def test_random_boxes_are_every_triple_of_sides(most: int, step: int, wanted: tuple[int, ...]) -> None:
    catalogue, stream = RandomBoxes(2, most, step).build(BPP10, "fixed", 30, 4)
    sides = torch.cat([catalogue.extent[:, 0], catalogue.height.long()], 1)
    assert {tuple(s) for s in sides.tolist()} == set(itertools.product(wanted, repeat=3))
    assert torch.equal(catalogue.volume, sides.prod(1).float())
    assert stream.length == 30


def test_a_step_of_sides_is_at_least_a_cell() -> None:
    with pytest.raises(ValueError, match=r"^RandomBoxes: step .*1.* 0"):
        RandomBoxes(1, 6, step=0)


@pytest.mark.parametrize(("orientations", "count"), [("fixed", 1), ("yaw", 2), ("axis", 6), ("cube", 24)])
def test_orientations_of_a_box_are_its_sides_in_another_order(orientations: str, count: int) -> None:
    catalogue = box_catalogue(np.array([[1, 2, 3]]), np.array([6.0]), BPP10, orientations)
    turned = torch.cat([catalogue.extent[0], catalogue.height[0].long()[:, None]], 1).tolist()
    assert len(turned) == count
    assert turned[0] == [1, 2, 3]
    assert all(sorted(sides) == [1, 2, 3] for sides in turned)
    assert len({tuple(sides) for sides in turned}) == min(count, 6)


def test_sizes_become_metres_by_the_cell() -> None:
    catalogue = box_catalogue(np.array([[4, 2, 6]]), np.array([6.0]), HALF, "fixed")
    assert catalogue.extent.tolist() == [[[4, 2]]]
    # 6 cells of 0.5 m: as high as the bin.
    assert catalogue.height.tolist() == [[3.0]]
    catalogue, _ = RandomBoxes(2, 2).build(HALF, "fixed", 1, 1)
    # (2 · 0.5 m)³.
    assert catalogue.volume.tolist() == [1.0]


def test_a_box_must_fit_in_some_orientation() -> None:
    # It fits turned: 5×4.
    box_catalogue(np.array([[4, 5, 1]]), np.array([1.0]), HALF, "yaw")
    with pytest.raises(ValueError) as error:
        box_catalogue(np.array([[1, 1, 1], [4, 5, 1]]), np.ones(2), HALF, "fixed")
    assert str(error.value) == (
        "box_catalogue: every box must fit the bin of [5.0, 4.0, 6.0] cells in some orientation; got a box of [4, 5, 1]"
        " cells"
    )


def test_boxes_turn_on_square_cells_only() -> None:
    oblong = Bin((10.0, 5.0, 10.0), (10, 10))
    RandomBoxes(1, 2).build(oblong, "fixed", 1, 1)
    with pytest.raises(ValueError, match=r"^box_catalogue: cells .*square.*\(1.0, 0.5\)"):
        RandomBoxes(1, 2).build(oblong, "yaw", 1, 1)


# -- cut boxes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bin_", "message"),
    [
        (Bin((10.0, 10.0, 9.5), (10, 10)), "the bin's height must be a whole number of cells; got 9.5"),
        (Bin((10.0, 1.0, 10.0), (10, 1)), "the bin must be at least 2 cells a side; got (10, 1, 10)"),
    ],
)
def test_bins_that_cannot_be_cut_say_why(bin_: Bin, message: str) -> None:
    with pytest.raises(ValueError) as error:
        CutBoxes(pool=1).cut(bin_)
    assert str(error.value) == f"CutBoxes: {message}"


def test_a_seed_without_a_pool_is_refused() -> None:
    with pytest.raises(ValueError, match=r"seed .*pool.* 3"):
        CutBoxes(pool=None, seed=3)


def test_the_seed_decides_the_pool() -> None:
    pools = [CutBoxes(pool=3, seed=seed).cut(BPP10) for seed in (0, 0, 1)]
    assert pools[0] == pools[1] != pools[2]
    assert CutBoxes(3, 5, "stack", 7).reseeded(1).cut(BPP10) == CutBoxes(3, 5, "stack", 7, 1).cut(BPP10)
