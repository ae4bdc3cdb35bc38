"""Loads on the road: what holds, what goes first, and at what a wrapped load tips."""

from __future__ import annotations

import numpy as np
import pytest

from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.physics import PackingPlan, tipping_g, transport
from torchrl_gpu.envs.packing.plan import Pose

pytest.importorskip("mujoco")

Box = tuple[tuple[float, float, float], tuple[float, float, float]]


def load(*boxes: Box) -> PackingPlan:
    """Boxes by corner and sides, on a EUR pallet."""
    solids = tuple(Solid.of_box(f"box-{i}", np.array(sides)) for i, (_, sides) in enumerate(boxes))
    poses = tuple(Pose(i, np.eye(3), np.array(corner)) for i, (corner, _) in enumerate(boxes))
    return PackingPlan(solids, poses, (1.2, 0.8, 1.5), False, (10.0,) * len(boxes))


def test_a_low_box_holds_where_friction_is_more_than_the_push() -> None:
    found = transport(load(((0.4, 0.25, 0.0), (0.4, 0.3, 0.2))), friction=0.8)
    assert found.holds
    assert found.first is None
    assert found.moved.max() < 0.01


def test_a_box_slides_where_friction_is_less() -> None:
    found = transport(load(((0.4, 0.25, 0.0), (0.4, 0.3, 0.2))), friction=0.2)
    assert not found.holds
    assert found.first == 0
    assert found.moved[0] > 0.05


def test_the_top_of_a_tower_goes_first_across_its_narrow_side() -> None:
    tower = [((0.4, 0.35, 0.2 * i), (0.4, 0.1, 0.2)) for i in range(5)]
    found = transport(load(*tower), friction=0.9)
    assert not found.holds
    assert found.first == 4
    assert found.direction.endswith("y")


def test_a_wrapped_load_tips_at_half_its_width_over_its_middle() -> None:
    assert tipping_g(load(((0.4, 0.25, 0.0), (0.4, 0.3, 1.2)))) == pytest.approx(0.15 / 0.6)
    # Two boxes of equal weight side by side are as wide as both.
    both = load(((0.2, 0.25, 0.0), (0.4, 0.3, 1.0)), ((0.6, 0.25, 0.0), (0.4, 0.3, 1.0)))
    assert tipping_g(both) == pytest.approx(0.15 / 0.5)


def test_nothing_on_a_pallet_holds() -> None:
    assert transport(load()).holds
