"""The rule `com` on one placement at a time, and what of a catalogue it reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.envs.packing.hulls import balances
from tests.envs.packing.kernels.parity import KINDS, some_placement
from tests.envs.packing.scenes import CELL, LAW, RULES, bin_of, scene
from tests.records import with_values
from torchrl_gpu.envs.packing.kernels import balanced, judge_placements, reference
from torchrl_gpu.envs.packing.stability.centres import centre_16ths
from torchrl_gpu.envs.packing.stability.com import holds, stable_on_floor
from torchrl_gpu.envs.packing.stability.rule import standing_height
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Placement

seeds, kinds = st.integers(0, 2**32 - 1), st.sampled_from(KINDS)


# -- what is made once -----------------------------------------------------------------------------------------------


def wedge(centre: list[float] | None) -> Catalogue:
    """Build 1×4 cells whose underside rises by a cell from each to the next.

    Its centre of mass is in metres.
    """
    bottom = torch.arange(4.0).view(1, 1, 1, 4) * CELL
    extent, given_centre = torch.tensor([[[1, 4]]]), None if centre is None else torch.tensor([[centre]])
    return Catalogue.of_maps(torch.ones_like(bottom), bottom, extent, torch.ones(1), centre=given_centre)


def test_centres_by_hand() -> None:
    # Cells of 1/8 m, so a sixteenth is 1/128 m: (1/16, 5/16) m is (8, 40) of them. A tenth of a metre is 12.8.
    bin_ = bin_of((4, 8))
    assert centre_16ths(wedge([1 / 16, 5 / 16]), bin_).tolist() == [[[8, 40]]]
    assert centre_16ths(wedge([0.1, 0.1]), bin_).tolist() == [[[13, 13]]]
    # The middle of 1×4 cells.
    assert centre_16ths(wedge(None), bin_).tolist() == [[[8, 32]]]
    # It is never beside the footprint.
    assert centre_16ths(wedge([-0.1, 9.0]), bin_).tolist() == [[[0, 64]]]
    boxes = Catalogue.of_boxes(torch.tensor([[[3, 2, CELL], [2, 3, CELL]]], dtype=torch.float64), torch.ones(1))
    assert centre_16ths(boxes, bin_).tolist() == [[[24, 16], [16, 24]]]
    assert centre_16ths(boxes, bin_).dtype == torch.int32


def test_centres_count_in_cells_that_are_not_square() -> None:
    # Cells are 0.1 × 0.2 m.
    bin_ = Bin((0.4, 0.8, 0.3), (4, 4))
    assert centre_16ths(wedge([0.05, 0.2]), bin_).tolist() == [[[8, 16]]]


@LAW
@given(seeds, kinds)
def test_what_is_stable_on_the_floor_is_so_everywhere_when_it_is_empty(seed: int, kind: str) -> None:
    s = scene(seed, kind, stability="com")
    items = torch.arange(s.catalogue.num_items)[None]
    _, legal = reference.drop_map(torch.zeros(1, *s.bin_.cells), items, s.catalogue, s.bin_)
    _, fits = reference.drop_map(torch.zeros(1, *s.bin_.cells), items, s.catalogue, s.under(stability="none").bin_)
    on_floor = stable_on_floor(s.catalogue, s.bin_)
    assert torch.equal(legal[0], fits[0] & on_floor[..., None, None])
    height = standing_height(s.catalogue, s.bin_)
    assert torch.equal(height, torch.where(on_floor, s.catalogue.height, torch.inf))
    assert standing_height(s.catalogue, s.under(stability="support").bin_) is s.catalogue.height


def test_a_balanced_catalogue_is_read_rather_than_made_anew() -> None:
    s = scene(1, "solids", stability="com")
    made = balanced(s.catalogue, s.bin_)
    assert made.centre_16ths is not None
    assert made.stable_on_floor is not None
    assert torch.equal(made.centre_16ths, centre_16ths(s.catalogue, s.bin_))
    assert torch.equal(made.stable_on_floor, stable_on_floor(s.catalogue, s.bin_))
    assert centre_16ths(made, s.bin_) is made.centre_16ths
    assert stable_on_floor(made, s.bin_) is made.stable_on_floor
    moved = made.to(torch.device("meta"))
    assert moved.centre_16ths is not None
    assert moved.centre_16ths.is_meta
    before = reference.drop_map(*s)
    after = reference.drop_map(*with_values(s, catalogue=made))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# -- verdicts -----------------------------------------------------------------------------------------------------


@LAW
@given(seeds)
def test_holds_is_the_hull_or_the_square(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(c) for c in rng.integers(1, 9, 2))
    contact = rng.random((12, *shape)) < rng.random() ** 2
    centre = rng.integers(0, 16 * np.array(shape) + 1, (12, 2))
    # They are often on the edges of hulls.
    centre = np.where(rng.random(12)[:, None] < 0.5, centre // 8 * 8, centre)
    came = holds(torch.from_numpy(contact), torch.from_numpy(centre))
    assert came.tolist() == [balances(each, (int(x), int(y))) for each, (x, y) in zip(contact, centre, strict=True)]


def test_wide_footprints_are_held_exactly() -> None:
    # Two posts far apart and a centre on their line, or a sixteenth to either side of it.
    a, b = (1, 3), (1999, 1402)
    contact = torch.zeros(3, 2000, 1500, dtype=torch.bool)
    contact[:, a[0], a[1]] = contact[:, b[0], b[1]] = True
    # Half way, in cells: (1000, 702.5).
    steps = 1998 // 2
    middle = [16 * (a[0] + steps) + 8, 8 * (a[1] + b[1]) + 8]
    centre = torch.tensor([[middle[0], middle[1] + off] for off in (-1, 0, 1)])
    assert holds(contact, centre).tolist() == [False, True, False]


@LAW
@given(seeds, kinds, st.sampled_from(RULES))
def test_given_placements_are_judged_as_in_the_reference(seed: int, kind: str, stability: str) -> None:
    s = scene(seed, kind, num_envs=8, stability=stability)
    placement = some_placement(s, seed)
    expected = reference.judge_placements(s.heightmap, placement, s.catalogue, s.bin_)
    assert torch.equal(judge_placements(s.heightmap, placement, s.catalogue, s.bin_), expected)
    assert not expected[placement.item_id < 0].any()


@LAW
@given(seeds, kinds)
def test_the_verdict_on_a_placement_at_rest_is_that_of_the_map(seed: int, kind: str) -> None:
    s = scene(seed, kind, num_envs=1, stability="com")
    z_map, legal = reference.drop_map(*s)
    _, low_enough = reference.drop_map(*s.under(stability="none"))
    k, o, gx, gy = low_enough[0].nonzero().unbind(1)
    item = s.item_id[0, k]
    extent = s.catalogue.extent[item.clamp_min(0), o]
    x = torch.minimum(gx * s.bin_.step, s.bin_.cells[0] - extent[:, 0])
    y = torch.minimum(gy * s.bin_.step, s.bin_.cells[1] - extent[:, 1])
    placement = Placement(item, o, x, y, z_map[0, k, o, gx, gy])
    heightmap = s.heightmap.expand(len(item), -1, -1)
    for bin_ in (s.bin_, s.under(stability="none").bin_):
        assert torch.equal(judge_placements(heightmap, placement, s.catalogue, bin_), legal[0, k, o, gx, gy])


@pytest.mark.parametrize("kind", KINDS)
def test_placements_are_judged_alike_on_every_device(kind: str, device: torch.device) -> None:
    s = scene(3, kind, num_envs=40)
    placement = some_placement(s, 0)
    there = s.to(device)
    came = judge_placements(there.heightmap, Placement(*(f.to(device) for f in placement)), there.catalogue, s.bin_)
    assert torch.equal(came.cpu(), reference.judge_placements(s.heightmap, placement, s.catalogue, s.bin_))


def test_a_verdict_by_hand() -> None:
    # The wedge with its near end on a post, where it rests, and where it is a metre above it; then no wedge. The other
    # wedge has its centre beyond the post.
    heights = torch.zeros(3, 1, 6)
    heights[:, 0, 1] = 1.0
    zero = torch.zeros(3, dtype=torch.int64)
    placement = Placement(torch.tensor([0, 0, -1]), zero, zero, zero + 1, torch.tensor([1.0, 2.0, 1.0]))
    bin_ = bin_of((1, 6), levels=40)
    assert judge_placements(heights, placement, wedge([CELL / 2, CELL]), bin_).tolist() == [True, False, False]
    assert not judge_placements(heights, placement, wedge([CELL / 2, 1.5 * CELL]), bin_).any()
