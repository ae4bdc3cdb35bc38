"""Bins and catalogues."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given

from tests.envs.packing.scenes import LAW, SCENES, Scene
from tests.native.compilers import need_compiler
from torchrl_gpu.envs.packing.kernels import balanced, get_kernels
from torchrl_gpu.envs.packing.types import Bin, Catalogue


def test_measures_of_a_bin_by_hand() -> None:
    bin_ = Bin((0.4, 0.2, 0.3), (20, 10), step=3)
    assert bin_.cell == pytest.approx((0.02, 0.02))
    assert bin_.grid == (7, 4)  # ceil(20 / 3), ceil(10 / 3)
    assert bin_.volume == pytest.approx(0.024)
    assert bin_.cell_area == pytest.approx(0.0004)
    assert bin_.tolerance == pytest.approx(2e-5)
    assert bin_.com_tolerance == pytest.approx(0.01 + 2e-5)  # half a cell, and what makes up for rounding
    assert bin_.contact_tolerance == bin_.tolerance
    assert Bin((0.4, 0.1, 0.3), (20, 10), stability="com").contact_tolerance == pytest.approx(0.005 + 1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": (1.0, 1.0)}, "bin_size must be three positive lengths in metres; got (1.0, 1.0)"),
        ({"size": (1.0, 0.0, 1.0)}, "bin_size must be three positive lengths in metres; got (1.0, 0.0, 1.0)"),
        ({"size": (1.0, -2.0, 1.0)}, "bin_size must be three positive lengths in metres; got (1.0, -2.0, 1.0)"),
        ({"size": (1.0, 1.0, math.nan)}, "bin_size must be three positive lengths in metres; got (1.0, 1.0, nan)"),
        ({"size": (math.inf, 1.0, 1.0)}, "bin_size must be three positive lengths in metres; got (inf, 1.0, 1.0)"),
        ({"cells": (0, 4)}, "resolution must give at least one cell along x and y; got (0, 4)"),
        ({"cells": (4,)}, "resolution must give at least one cell along x and y; got (4,)"),
        ({"step": 0}, "grid_step must be from 1 to the bin's 4 cells; got 0"),
        ({"step": 5}, "grid_step must be from 1 to the bin's 4 cells; got 5"),
        ({"stability": "glue"}, "stability must be one of none, corners, support, com; got 'glue'"),
        ({"stability": "com", "cells": (9, 2048)}, "stability com wants at most 2047 cells a side; got (9, 2048)"),
    ],
)
def test_bad_bins_say_what_is_wanted_and_what_came(changes: dict[str, object], message: str) -> None:
    fields = {"size": (1.0, 1.0, 1.0), "cells": (4, 6)} | changes
    with pytest.raises(ValueError) as error:
        Bin(**fields)  # type: ignore[arg-type]
    assert str(error.value) == f"Bin: {message}"


@pytest.fixture
def two_boxes() -> Catalogue:
    """1×2×3 and 2×2×1, each in two orientations."""
    sizes = torch.tensor([[[1, 2, 3.0], [2, 1, 3.0]], [[2, 2, 1.0], [2, 2, 1.0]]], dtype=torch.float64)
    return Catalogue.of_boxes(sizes, torch.tensor([6.0, 4.0]))


def test_maps_of_boxes_by_hand(two_boxes: Catalogue) -> None:
    assert two_boxes.flat
    assert (two_boxes.num_items, two_boxes.num_orientations, two_boxes.footprint) == (2, 2, (2, 2))
    assert two_boxes.bounds == ((2, 2), (2, 2))
    top, bottom = two_boxes.maps(torch.tensor([0, 0, 1, -1]), torch.tensor([0, 1, 0, 0]))
    inf = math.inf
    assert top.tolist() == [[[3, 3], [0, 0]], [[3, 0], [3, 0]], [[1, 1], [1, 1]], [[0, 0], [0, 0]]]
    assert bottom.tolist() == [[[0, 0], [inf, inf]], [[0, inf], [0, inf]], [[0, 0], [0, 0]], [[inf, inf], [inf, inf]]]


def test_items_and_orientations_broadcast(two_boxes: Catalogue) -> None:
    top, bottom = two_boxes.maps(torch.tensor([[0], [1], [-1]]), torch.arange(2))
    assert top.shape == bottom.shape == (3, 2, 2, 2)
    assert top.dtype == bottom.dtype == torch.float32


def test_maps_of_solids_are_those_given() -> None:
    top = torch.tensor([[[[2.0, 0.0]], [[1.0, 3.0]]]])  # (M=1, O=2, P=1, Q=2)
    bottom = torch.tensor([[[[0.0, math.inf]], [[0.5, 0.0]]]])
    catalogue = Catalogue.of_maps(top, bottom, torch.tensor([[[1, 1], [1, 2]]]), torch.tensor([1.0]))
    assert not catalogue.flat
    assert catalogue.bounds == ((1, 1), (1, 2))
    assert catalogue.height.tolist() == [[2, 3]]
    came = catalogue.maps(torch.tensor([0, -1]), torch.tensor(1))
    assert came[0].tolist() == [[[1, 3]], [[0, 0]]]
    assert came[1].tolist() == [[[0.5, 0]], [[math.inf, math.inf]]]


def test_a_catalogue_moves_whole(two_boxes: Catalogue, device: torch.device) -> None:
    moved = two_boxes.to(device)
    for tensor in (moved.extent, moved.height, moved.volume):
        assert tensor.device.type == device.type
    assert moved.bounds == two_boxes.bounds
    assert moved.top is None


def test_bounding_boxes_by_hand(two_boxes: Catalogue) -> None:
    # 1×2 and 2×2 cells of 0.5×0.5 m, 3 m and 1 m high: 2·0.25·3 and 4·0.25·1 m³, whatever the material within.
    assert two_boxes.box_volume(Bin((2.0, 2.0, 4.0), (4, 4))).tolist() == [1.5, 1.0]
    hollow = torch.tensor([[[[2.0, 0.0], [0.0, 3.0]]]])
    catalogue = Catalogue.of_maps(hollow, torch.zeros_like(hollow), torch.tensor([[[2, 2]]]), torch.tensor([0.1]))
    assert catalogue.box_volume(Bin((2.0, 2.0, 4.0), (4, 4))).tolist() == [3.0]


def test_separated_by_hand(two_boxes: Catalogue) -> None:
    apart = two_boxes.separated()
    assert (apart.num_items, apart.num_orientations) == (4, 1)
    assert apart.extent[:, 0].tolist() == [[1, 2], [2, 1], [2, 2], [2, 2]]
    assert apart.height[:, 0].tolist() == [3, 3, 1, 1]
    assert apart.volume.tolist() == [6, 6, 4, 4]
    assert apart.bounds == ((2, 2),)
    assert apart.least == ((1, 1),)
    assert apart.flat


def separation(scene: Scene, backend: str) -> None:
    """A catalogue and its separation give the same maps, growth and judgement of every item in every orientation."""
    heightmap, item_id, catalogue, bin_ = scene
    if bin_.stability == "com":
        catalogue = balanced(catalogue, bin_)
    kernels, num = get_kernels(backend), catalogue.num_orientations
    variant = torch.where(item_id[..., None] < 0, -1, item_id[..., None] * num + torch.arange(num)).flatten(1)
    whole = kernels.drop_map(heightmap, item_id, catalogue, bin_)
    apart = kernels.drop_map(heightmap, variant, catalogue.separated(), bin_)
    for joined, single in zip(whole, apart, strict=True):
        assert torch.equal(joined.flatten(1, 2), single[:, :, 0])
    growth = kernels.pile_growth(heightmap, item_id, whole[0], catalogue, bin_)
    assert torch.equal(
        growth.flatten(1, 2), kernels.pile_growth(heightmap, variant, apart[0], catalogue.separated(), bin_)[:, :, 0]
    )


@LAW
@given(SCENES)
def test_separated_orientations_rest_where_the_whole_catalogue_says(scene: Scene) -> None:
    separation(scene, "eager")


@LAW
@given(SCENES)
def test_so_they_do_by_the_compiled_kernels(scene: Scene) -> None:
    need_compiler()
    separation(scene.counted(0.125), "compiled")


def test_a_separated_catalogue_shares_the_maps() -> None:
    top = torch.rand(2, 3, 4, 5)
    extent = torch.tensor([4, 5]).expand(2, 3, 2)
    catalogue = Catalogue.of_maps(top, torch.zeros_like(top), extent, torch.ones(2), unit=0.5)
    apart = catalogue.separated()
    assert apart.top is not None
    assert apart.top.data_ptr() == top.data_ptr()
    assert apart.unit == 0.5
