"""Counts are those of a loop over everything."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.kernels.counts import count
from benchmarks.kernels.workloads import Workload, boxes, procedural
from tests.benchmarks.kernels import tiny
from torchrl_gpu.envs.packing.kernels.reference import item_maps, placements


def counted(workload: Workload) -> tuple[int, int]:
    """(placements, add-max operations), one placement and one cell at a time."""
    _, item_id, catalogue, bin_ = workload
    fitting = operations = 0
    for n, k, o in np.ndindex(*item_id.shape, catalogue.num_orientations):
        if item_id[n, k] < 0:
            continue
        _, bottom = item_maps(catalogue, int(item_id[n, k]), o)
        for _ in placements(bottom.shape[0], bin_.cells[0], bin_):
            for _ in placements(bottom.shape[1], bin_.cells[1], bin_):
                fitting += 1
                operations += int(np.isfinite(bottom).sum())
    return fitting, operations


@pytest.mark.parametrize("resolution", [26, 25])  # without and with a placement flush with the far wall
def test_counts_are_those_of_a_loop(resolution: int) -> None:
    workload = tiny.workload(2, 2, resolution)
    work = count(workload)
    assert (work.placements, work.add_max) == counted(workload)
    assert work.z_maps == 2 * 2 * 24


def test_items_of_all_sizes_and_empty_slots() -> None:
    workload = procedural(3, 2, resolution=20, step=3)
    workload.item_id[1, 1] = -1
    work = count(workload)
    assert (work.placements, work.add_max) == counted(workload)


def test_boxes_need_no_operation_for_each_cell() -> None:
    workload = boxes(5)
    work = count(workload)
    assert work.placements == counted(workload)[0]
    assert work.as_data()["add_max_per_z_map"] is None


def test_bytes_are_what_is_read_and_written_once() -> None:
    read = 5 * 10 * 10 * 4 + 5 * 8
    written = 5 * 2 * 10 * 10 * (4 + 1)
    assert count(boxes(5)).num_bytes == read + written
    assert count(boxes(5)).as_data()["bytes_per_z_map"] == (read + written) / 10


def test_the_bottom_of_an_item_counts_once_however_often_it_is_shown() -> None:
    one = tiny.workload(1)
    many = one._replace(heightmap=one.heightmap.expand(3, -1, -1), item_id=one.item_id.expand(3, -1))
    bottoms = 24 * tiny.SIDE**2 * 4
    assert count(many).num_bytes - bottoms == 3 * (count(one).num_bytes - bottoms)
