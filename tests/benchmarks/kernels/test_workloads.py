"""What is timed is what the tables say that it is."""

from __future__ import annotations

import pytest
import torch

from benchmarks.kernels.workloads import Pebbles, boxes, pebbles
from tests.benchmarks.kernels import tiny
from torchrl_gpu.envs.packing.types import Bin

BIN = Bin((0.4, 0.4, 0.3), (200, 200), 4)


def test_pebbles_fill_four_fifths_of_their_footprint_in_every_orientation() -> None:
    catalogue, _ = Pebbles(50, num_objects=2).build(BIN, "cube", 1, 1)
    assert catalogue.bottom is not None
    assert (catalogue.extent == 50).all()
    share = catalogue.bottom.isfinite().float().mean((-1, -2))
    assert share.shape == (2, 24)
    assert share.sub(0.8).abs().max() < 0.01


def test_heights_are_whole_multiples_of_the_unit() -> None:
    workload = pebbles(4, 1, side=20, resolution=100, step=4)
    catalogue, unit = workload.catalogue, workload.catalogue.unit
    assert catalogue.top is not None
    assert catalogue.bottom is not None
    assert unit == pytest.approx(0.004)
    for heights in (catalogue.top, catalogue.bottom[catalogue.bottom.isfinite()], workload.heightmap):
        counts = heights / unit
        assert (counts - counts.round()).abs().max() < 1e-3


def test_pebbles_differ_and_are_uneven_from_below() -> None:
    catalogue, _ = Pebbles(20, num_objects=2).build(BIN, "cube", 1, 1)
    assert catalogue.bottom is not None
    first, second = catalogue.bottom[:, 0]
    assert not torch.equal(first, second)
    assert first[first.isfinite()].unique().numel() > 4


@pytest.mark.parametrize("workload", [tiny.workload(40), boxes(40)], ids=["pebbles", "boxes"])
def test_piles_hold_items_and_stay_in_the_bin(workload: object) -> None:
    heightmap, _, _, bin_ = workload  # type: ignore[misc]
    assert heightmap.min() >= 0
    assert heightmap.max() <= bin_.size[2] + bin_.tolerance
    assert (heightmap > 0).float().mean() > 0.3
    assert torch.equal(heightmap[0], heightmap[16])  # more environments share the piles
    assert not torch.equal(heightmap[0], heightmap[1])


@pytest.mark.parametrize("workload", [tiny.workload(3, 2), boxes(3)], ids=["pebbles", "boxes"])
def test_a_reduced_workload_shows_the_same_items(workload: object) -> None:
    few = workload.first(2, 1, [0, 1])  # type: ignore[attr-defined]
    assert few.num_envs == 2
    assert few.maps_per_env == 2
    whole = workload.catalogue  # type: ignore[attr-defined]
    assert torch.equal(few.catalogue.extent, whole.extent[:, :2])
    assert torch.equal(few.catalogue.height, whole.height[:, :2])
