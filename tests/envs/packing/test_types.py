"""Bins and catalogues."""

from __future__ import annotations

import math

import pytest
import torch

from torchrl_gpu.envs.packing.types import Bin, Catalogue


def test_measures_of_a_bin_by_hand() -> None:
    bin_ = Bin((0.4, 0.2, 0.3), (20, 10), step=3)
    assert bin_.cell == pytest.approx((0.02, 0.02))
    assert bin_.grid == (7, 4)  # ceil(20 / 3), ceil(10 / 3)
    assert bin_.volume == pytest.approx(0.024)
    assert bin_.cell_area == pytest.approx(0.0004)
    assert bin_.tolerance == pytest.approx(2e-5)


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
        ({"stability": "glue"}, "stability must be one of none, corners, support; got 'glue'"),
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
