"""Overlaps made by hand, with their depth worked out.

What the environment packs has none.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.envs.packing.physics.stacks import BIN, plan_of_boxes, prism, turned
from tests.envs.packing.settings import packing, play
from tests.records import with_values
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.overlap import Overlap, overlaps
from torchrl_gpu.envs.packing.plan import PackingPlan, plan_of

VOXEL = 0.002
CUBE = (0.1, 0.1, 0.1)


def channel() -> Solid:
    """Build a U of three boxes, 0.1 m a side outside.

    Inside, 0.06 × 0.1 × 0.08 m are empty.
    """
    boxes = [((0, 0, 0), (0.1, 0.1, 0.02)), ((0, 0, 0.02), (0.02, 0.1, 0.08)), ((0.08, 0, 0.02), (0.02, 0.1, 0.08))]
    made = [Solid.of_box("", np.array(sides)) for _, sides in boxes]
    parts = tuple(box.vertices + np.array(corner) for box, (corner, _) in zip(made, boxes, strict=True))
    faces = np.concatenate([box.faces + 8 * i for i, box in enumerate(made)])
    return Solid("channel", parts, np.concatenate(parts), faces, np.array([0.05, 0.05, 0.036]), 5.2e-4)


def test_items_that_touch_do_not_overlap() -> None:
    plan = plan_of_boxes(((0, 0, 0), CUBE), ((0.1, 0, 0), CUBE), ((0.05, 0.02, 0.1), CUBE), ((0.25, 0.25, 0.15), CUBE))
    assert overlaps(plan, VOXEL) == Overlap(0.0, None, 0.0, None)
    assert overlaps(plan, VOXEL).deepest == 0.0


@pytest.mark.parametrize(
    ("corner", "depth"),
    [
        ((0.07, 0, 0), 0.03),
        ((0, 0, 0.096), 0.004),
        # What they share is 0.07 × 0.06 × 0.05.
        ((0.03, 0.04, 0.05), 0.05),
        ((0, 0, 0), 0.1),
    ],
)
def test_depth_is_the_shortest_way_out(corner: tuple[float, float, float], depth: float) -> None:
    found = overlaps(plan_of_boxes(((0, 0, 0), CUBE), (corner, CUBE)), VOXEL)
    assert found.items == pytest.approx(depth)
    assert found.pair == (0, 1)
    assert found.deepest == found.items


def test_the_deepest_of_several_is_named() -> None:
    plan = plan_of_boxes(((0, 0, 0), CUBE), ((0.09, 0, 0), CUBE), ((0.2, 0.2, 0), CUBE), ((0.2, 0.26, 0), CUBE))
    assert overlaps(plan, VOXEL)[:2] == (pytest.approx(0.04), (2, 3))


def test_what_lies_in_a_hollow_does_not_overlap() -> None:
    hollow, box = channel(), Solid.of_box("box", np.array([0.06, 0.1, 0.08]))
    inside = PackingPlan(
        (hollow, box), (turned(hollow, 0, 0, 0, (0, 0, 0)), turned(box, 0, 0, 0, (0.02, 0, 0.02))), BIN
    )
    assert overlaps(inside, VOXEL).items == 0.0
    deeper = with_values(inside, poses=(inside.poses[0], turned(box, 0, 0, 0, (0.026, 0, 0.02))))
    assert overlaps(deeper, VOXEL).items == pytest.approx(0.006)
    # The opening looks along x.
    on_its_side = turned(hollow, 0, 90, 0, (0, 0, 0))
    assert overlaps(with_values(inside, poses=(on_its_side, inside.poses[1])), VOXEL).items == pytest.approx(0.02)


def test_turned_items() -> None:
    # Two bars of 0.04 × 0.04 m cross at 45° in the same plane: what they share is 0.04 high, and wider than that.
    bar = Solid.of_box("bar", np.array([0.2, 0.04, 0.04]))
    poses = turned(bar, 0, 0, 0, (0.1, 0.2, 0)), turned(bar, 0, 0, 45, (0.12, 0.14, 0))
    assert overlaps(PackingPlan((bar, bar), poses, BIN), VOXEL).items == pytest.approx(0.04)
    can = prism(48, 0.05, 0.1)
    beside = turned(can, 0, 0, 0, (0, 0, 0)), turned(can, 0, 0, 0, (0.05 * math.sqrt(2) + 0.002,) * 2 + (0,))
    # Their bounds overlap, and they do not.
    assert overlaps(PackingPlan((can, can), beside, BIN), VOXEL).items == 0.0


@pytest.mark.parametrize(
    ("corner", "depth"), [((-0.01, 0, 0), 0.01), ((0, 0.305, 0), 0.005), ((0, 0, -0.02), 0.02), ((0.1, 0, 0.25), 0.05)]
)
def test_items_in_walls_floor_or_lid(corner: tuple[float, float, float], depth: float) -> None:
    found = overlaps(plan_of_boxes(((0.2, 0.2, 0), CUBE), (corner, CUBE)), VOXEL)
    assert found == Overlap(0.0, None, pytest.approx(depth), 1)
    assert found.deepest == found.walls


def test_an_empty_bin() -> None:
    assert overlaps(PackingPlan((), (), BIN), VOXEL) == Overlap(0.0, None, 0.0, None)


@pytest.mark.parametrize("setting", ["irregular", "by volume"])
def test_what_the_environment_packs_does_not_overlap(setting: str) -> None:
    env = packing(setting, num_envs=3)
    play(env, 5)
    for index in range(3):
        plan = plan_of(env, index)
        found = overlaps(plan, min(env.cell) / 2)
        assert found.items == 0.0
        assert found.walls <= 1e-6 * max(env.bin_size)


@pytest.mark.parametrize("voxel", [0.0, -1.0, math.nan, math.inf])
def test_bad_voxels_are_refused(voxel: float) -> None:
    with pytest.raises(ValueError, match=r"voxel .*positive .*metres"):
        overlaps(PackingPlan((), (), BIN), voxel)
