"""Bins and catalogues."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given

from tests.envs.packing.scenes import CELL, LAW, SCENES, Scene, as_solids
from tests.native.compilers import need_compiler
from torchrl_gpu.envs.packing.kernels import balanced, get_kernels
from torchrl_gpu.envs.packing.types import MOST_MAP_CELLS, Bin, Catalogue


def test_measures_of_a_bin_by_hand() -> None:
    bin_ = Bin((0.4, 0.2, 0.3), (20, 10), step=3)
    assert bin_.cell == pytest.approx((0.02, 0.02))
    # ceil(20 / 3), ceil(10 / 3).
    assert bin_.grid == (7, 4)
    assert bin_.volume == pytest.approx(0.024)
    assert bin_.cell_area == pytest.approx(0.0004)
    assert bin_.tolerance == pytest.approx(2e-5)
    # Half a cell, and what makes up for rounding.
    assert bin_.com_tolerance == pytest.approx(0.01 + 2e-5)
    assert bin_.contact_tolerance == bin_.tolerance
    assert Bin((0.4, 0.1, 0.3), (20, 10), stability="com").contact_tolerance == pytest.approx(0.005 + 1e-5)


@pytest.mark.parametrize(
    ("changes", "named", "given"),
    [
        ({"size": (1.0, 1.0)}, "bin_size", "(1.0, 1.0)"),
        ({"size": (1.0, 0.0, 1.0)}, "bin_size", "(1.0, 0.0, 1.0)"),
        ({"size": (1.0, -2.0, 1.0)}, "bin_size", "(1.0, -2.0, 1.0)"),
        ({"size": (1.0, 1.0, math.nan)}, "bin_size", "(1.0, 1.0, nan)"),
        ({"size": (math.inf, 1.0, 1.0)}, "bin_size", "(inf, 1.0, 1.0)"),
        ({"cells": (0, 4)}, "resolution", "(0, 4)"),
        ({"cells": (4,)}, "resolution", "(4,)"),
        ({"step": 0}, "grid_step", "0"),
        ({"step": 5}, "grid_step", "5"),
        ({"stability": "glue"}, "stability must be one of none, corners, support, com, load_bearing", "'glue'"),
        ({"margin": -0.01}, "margin", "-0.01"),
        ({"max_tilt": math.inf}, "max_tilt", "inf"),
        ({"stability": "com", "cells": (9, 2048)}, "stability com", "(9, 2048)"),
    ],
)
def test_bad_bins_name_the_argument_and_the_value(changes: dict[str, object], named: str, given: str) -> None:
    fields = {"size": (1.0, 1.0, 1.0), "cells": (4, 6)} | changes
    with pytest.raises(ValueError, match=f"^Bin: {re.escape(named)}.*{re.escape(given)}$"):
        Bin(**fields)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@LAW
@given(scene=SCENES)
def test_separated_orientations_rest_where_the_whole_catalogue_says(backend: str, scene: Scene) -> None:
    if backend == "compiled":
        need_compiler()
        scene = scene.counted(0.125)
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


def test_a_separated_catalogue_shares_the_maps() -> None:
    top = torch.rand(2, 3, 4, 5)
    extent = torch.tensor([4, 5]).expand(2, 3, 2)
    catalogue = Catalogue.of_maps(top, torch.zeros_like(top), extent, torch.ones(2), unit=0.5)
    apart = catalogue.separated()
    assert apart.top is not None
    assert apart.top.data_ptr() == top.data_ptr()
    assert apart.unit == 0.5


# -- catalogues that would have a kernel read past the end of a map ----------------------------------------------------


BOXES = Catalogue.of_boxes(torch.tensor([[[2, 3, CELL], [3, 2, CELL]], [[1, 1, CELL], [1, 1, CELL]]]), torch.ones(2))
SOLIDS = as_solids(BOXES, CELL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extent": BOXES.extent.int()}, r"extent must be of dtype int64; got int32"),
        ({"extent": BOXES.extent[..., 0]}, r"extent must have shape \(2, 2, 2\); got \(2, 2\)"),
        ({"extent": BOXES.extent[:0]}, "extent has 0 items in 2 orientations"),
        ({"extent": BOXES.extent[:1]}, r"height must have shape \(1, 2\); got \(2, 2\)"),
        ({"height": BOXES.height.double()}, r"height must be of dtype float32; got float64"),
        ({"height": BOXES.height[:, :1]}, r"height must have shape \(2, 2\); got \(2, 1\)"),
        ({"height": BOXES.height.to("meta")}, r"height must be on cpu; got meta"),
        ({"volume": BOXES.volume[:1]}, r"volume must have shape \(2,\); got \(1,\)"),
        ({"centre_16ths": torch.zeros(2, 2, 2)}, r"centre_16ths must be of dtype int32; got float32"),
        ({"stable_on_floor": torch.ones(2, 1).bool()}, r"stable_on_floor must have shape \(2, 2\); got \(2, 1\)"),
        ({"bounds": BOXES.bounds[:1]}, r"bounds and least hold 1 and 2 extents.* 2 orientations"),
        ({"extent": BOXES.extent * 0}, r"extent of .* from 0 to 0 cells .*\(1, 1\) and \(2, 3\)"),
        ({"extent": -BOXES.extent}, r"extent of .* from -2 to -1 cells .*\(1, 1\) and \(2, 3\)"),
        ({"extent": BOXES.extent + 7}, r"extent of .* from 8 to 9 cells .*\(1, 1\) and \(2, 3\)"),
        ({"top": SOLIDS.top}, r"bottom is missing.*"),
        ({"bottom": SOLIDS.bottom}, r"top is missing.*"),
        ({"unit": 0.0}, r"unit .* not 0.0"),
        ({"unit": float("nan")}, r"unit .* not nan"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^Catalogue: {message}"):
        replace(BOXES, **changes)


def test_maps_must_hold_the_footprints() -> None:
    assert SOLIDS.top is not None
    assert SOLIDS.bottom is not None
    with pytest.raises(ValueError, match=r"^Catalogue: maps of \(2, 3\) cells .*\(3, 3\)"):
        replace(SOLIDS, top=SOLIDS.top[..., :2, :], bottom=SOLIDS.bottom[..., :2, :])
    with pytest.raises(ValueError, match=r"^Catalogue: top .*\(2, 2, 3, 3\).*\(2, 2, 2, 3\)$"):
        replace(SOLIDS, top=SOLIDS.top[..., :2, :])
    with pytest.raises(ValueError, match=r"^Catalogue: height .*float32.*float64$"):
        Catalogue.of_maps(SOLIDS.top.double(), SOLIDS.bottom.double(), SOLIDS.extent, SOLIDS.volume)
    wide = torch.zeros(1, 1, 1, MOST_MAP_CELLS + 1)
    with pytest.raises(ValueError, match=r"^Catalogue: maps .*\(1, 32768\) cells.*32767"):
        Catalogue.of_maps(wide, wide, torch.tensor([[[1, MOST_MAP_CELLS + 1]]]), torch.ones(1))


def test_what_kernels_read_lies_together_in_memory() -> None:
    strided = torch.stack([BOXES.height] * 2, -1)[..., 0]
    catalogue = replace(BOXES, height=strided, extent=BOXES.extent[:1].expand(2, -1, -1))
    assert catalogue.height.is_contiguous()
    assert catalogue.extent.is_contiguous()
    assert torch.equal(catalogue.height, BOXES.height)
