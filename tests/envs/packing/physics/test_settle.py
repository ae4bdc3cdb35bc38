"""Laws of statics that the judgement must obey."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.envs.packing.physics.stacks import BIN, plan_of_boxes, prism, turned
from tests.records import values_by_name, with_values
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.physics import Settled, settle, settle_cases
from torchrl_gpu.envs.packing.physics.simulate import angle_between
from torchrl_gpu.envs.packing.plan import PackingPlan, Pose, quaternion
from torchrl_gpu.envs.packing.rotations import turn

pytest.importorskip("mujoco")

CUBE = (0.1, 0.1, 0.1)
MODES = pytest.mark.parametrize("sequential", [False, True], ids=["whole", "sequential"])


# -- laws ------------------------------------------------------------------------------------------------------------


@MODES
def test_a_box_on_the_floor_stays(sequential: bool) -> None:
    settled = settle(*plan_of_boxes(((0.1, 0.1, 0), CUBE)), sequential=sequential)
    assert settled.stable.tolist() == [True]
    assert settled.moved[0] < 1e-3
    assert settled.turned[0] < 1e-2
    # It is at rest long before the time is up.
    assert settled.seconds < 0.5


@MODES
def test_a_box_on_its_edge_falls(sequential: bool) -> None:
    box = Solid.of_box("slab", np.array([0.02, 0.1, 0.2]))
    plan = PackingPlan((box,), (turned(box, 0, 50, 0, (0.1, 0.1, 0)),), BIN)
    settled = settle(*plan, sequential=sequential)
    assert settled.stable.tolist() == [False]
    # It lies flat.
    assert settled.turned[0] == pytest.approx(math.radians(40), abs=0.02)


@MODES
def test_a_tower_of_flush_boxes_stays(sequential: bool) -> None:
    boxes = [((0.15, 0.15, 0.05 * level), (0.1, 0.1, 0.05)) for level in range(6)]
    settled = settle(*plan_of_boxes(*boxes), sequential=sequential)
    assert settled.share == 1.0
    assert settled.moved.max() < 2e-3


@MODES
@pytest.mark.parametrize(("overhang", "stable"), [(0.045, True), (0.055, False), (0.08, False)])
def test_a_box_falls_when_its_centre_is_past_the_edge(overhang: float, stable: bool, sequential: bool) -> None:
    plan = plan_of_boxes(((0.1, 0.1, 0), CUBE), ((0.1 + overhang, 0.1, 0.1), CUBE))
    assert settle(*plan, sequential=sequential).stable.tolist() == [True, stable]


@MODES
def test_an_item_in_the_air_drops(sequential: bool) -> None:
    settled = settle(*plan_of_boxes(((0.1, 0.1, 0.15), CUBE)), sequential=sequential)
    assert not settled.stable[0]
    assert settled.moved[0] == pytest.approx(0.15, abs=2e-3)


# A board sticks out by more than half of its length until a heavier block stands on its other end.
BOARD = plan_of_boxes(((0.1, 0.1, 0), CUBE), ((0.1, 0.1, 0.1), (0.22, 0.1, 0.02)), ((0.1, 0.1, 0.12), (0.1, 0.1, 0.15)))


def test_what_only_a_later_item_would_hold_is_unstable_one_by_one() -> None:
    assert settle(*BOARD, sequential=False).stable.tolist() == [True, True, True]
    assert settle(*BOARD, sequential=True).stable[:2].tolist() == [True, False]


@pytest.mark.parametrize(("mass", "stable"), [(0.2, False), (5.0, True)])
def test_a_counterweight_holds_a_board_if_it_is_heavy(mass: float, stable: bool) -> None:
    # The board of 1 kg has its centre 1 cm past the edge of the cube; the block's is 5 cm behind it.
    assert settle(*with_values(BOARD, masses=(1.0, 1.0, mass)), sequential=False).stable[1] == stable


@MODES
@pytest.mark.parametrize(("overhang", "stable"), [(0.04, True), (0.06, False)])
def test_a_box_falls_off_a_pallet_when_its_centre_is_past_the_edge(
    overhang: float, stable: bool, sequential: bool
) -> None:
    plan = with_values(plan_of_boxes(((BIN[0] - 0.1 + overhang, 0.1, 0), CUBE)), walls=False)
    assert settle(*plan, sequential=sequential).stable.tolist() == [stable]


@MODES
def test_convex_parts_that_are_no_boxes(sequential: bool) -> None:
    can = prism(24, 0.04, 0.1)
    upright, tilted = turned(can, 0, 0, 0, (0.05, 0.05, 0)), turned(can, 50, 0, 0, (0.2, 0.2, 0))
    assert settle((can, can), (upright, tilted), BIN, sequential=sequential).stable.tolist() == [True, False]


@MODES
def test_a_solid_of_parts_stands_as_one(sequential: bool) -> None:
    # A bridge: two legs and a deck, of three boxes; alone the deck would drop.
    leg = Solid.of_box("", np.array((0.02, 0.1, 0.1))).vertices
    deck = Solid.of_box("", np.array((0.2, 0.1, 0.02))).vertices
    parts = (leg, leg + np.array([0.18, 0, 0]), deck + np.array([0, 0, 0.1]))
    faces = np.concatenate([Solid.of_box("", np.ones(3)).faces + 8 * i for i in range(3)])
    centre = np.array([0.1, 0.05, (2 * 2e-4 * 0.05 + 4e-4 * 0.11) / 8e-4])
    bridge = Solid("bridge", parts, np.concatenate(parts), faces, centre, 8e-4)
    settled = settle((bridge,), (turned(bridge, 0, 0, 90, (0.1, 0.1, 0)),), BIN, sequential=sequential)
    assert settled.stable[0]
    assert settled.moved[0] < 1e-3


# -- plans that are not exact ------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("noise", [0, 1e-7, 1e-4, 1e-3])
def test_a_full_bin_stays_and_slight_overlaps_do_no_harm(noise: float, sequential: bool) -> None:
    rng = np.random.default_rng(0)
    corners = itertools.product((0, 0.1), (0, 0.1, 0.2), (0, 0.1))
    boxes = [((x, y, z), CUBE) for z, x, y in corners]
    shifted = [(np.array(corner) + rng.uniform(-noise, noise, 3), sides) for corner, sides in boxes]
    plan = plan_of_boxes(*shifted, bin_size=(0.3, 0.2, 0.2))
    settled = settle(*plan, sequential=sequential)
    assert settled.share == 1.0
    assert settled.moved.max() < 1e-3 + 5 * noise


@MODES
def test_a_deep_overlap_is_unstable(sequential: bool) -> None:
    plan = plan_of_boxes(((0.1, 0.1, 0), CUBE), ((0.1, 0.1, 0.04), CUBE))
    settled = settle(*plan, sequential=sequential)
    assert not settled.stable[1]
    # They are pushed out, not shot out.
    assert settled.moved.max() < 0.5


@MODES
def test_two_items_in_one_place(sequential: bool) -> None:
    plan = plan_of_boxes(((0.1, 0.1, 0), CUBE), ((0.1, 0.1, 0), CUBE))
    assert not settle(*plan, sequential=sequential).stable[1]


def test_a_placement_is_not_blamed_for_one_before_it() -> None:
    # The second drops from the air; the third has a floor of its own, and the fourth is planned on the second.
    plan = plan_of_boxes(((0, 0, 0), CUBE), ((0.25, 0.25, 0.1), CUBE), ((0.15, 0, 0), CUBE), ((0.25, 0.25, 0.2), CUBE))
    assert settle(*plan, sequential=True).stable.tolist() == [True, False, True, False]


def test_an_item_in_a_wall_is_unstable() -> None:
    assert not settle(*plan_of_boxes(((-0.05, 0.1, 0), CUBE))).stable[0]


# -- contract --------------------------------------------------------------------------------------------------------


@MODES
def test_the_same_plan_gives_the_same_bits(sequential: bool) -> None:
    can = prism(24, 0.04, 0.1)
    plan = PackingPlan(
        (can, can), (turned(can, 50, 0, 0, (0.1, 0.1, 0)), turned(can, 90, 0, 0, (0.12, 0.1, 0.12))), BIN
    )
    first, again = settle(*plan, sequential=sequential), settle(*plan, sequential=sequential)
    assert np.array_equal(first.moved, again.moved)
    assert np.array_equal(first.turned, again.turned)


def test_both_modes_agree_on_a_simple_stack() -> None:
    plan = plan_of_boxes(((0.1, 0.1, 0), CUBE), ((0.12, 0.1, 0.1), CUBE), ((0.25, 0.1, 0), CUBE))
    whole, one_by_one = settle(*plan, sequential=False), settle(*plan, sequential=True)
    assert whole.stable.tolist() == one_by_one.stable.tolist() == [True, True, True]
    assert whole.moved == pytest.approx(one_by_one.moved, abs=1e-3)


def test_an_empty_bin() -> None:
    for sequential in (False, True):
        settled = settle((), (), BIN, sequential=sequential)
        assert settled.stable.shape == settled.moved.shape == settled.turned.shape == (0,)
        assert settled.share == 1.0


def test_cases_side_by_side_are_each_as_alone() -> None:
    plans = [plan_of_boxes(((0.1, 0.1, 0), CUBE), ((0.1 + x, 0.1, 0.1), CUBE)) for x in (0.0, 0.04, 0.07)]
    alone = [settle(*plan) for plan in plans]
    together = settle_cases(plans, workers=2)
    assert [settled.share for settled in together] == [1.0, 1.0, 0.5]
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one.moved, other.moved)


def test_share_is_the_mean() -> None:
    assert Settled(np.zeros(4), np.zeros(4), np.array([True, False, True, True]), 1.0).share == 0.75


def test_angles_between_rotations() -> None:
    identity = quaternion(np.eye(3))
    for degrees in (0.0, 1e-4, 30.0, 120.0, 180.0):
        turned_by = quaternion(turn(0, 0, degrees))
        assert angle_between(identity, turned_by) == pytest.approx(math.radians(degrees), abs=1e-9)
        assert angle_between(identity, -turned_by) == pytest.approx(math.radians(degrees), abs=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"solids": ()}, "0 solids for 1 poses"),
        ({"bin_size": (0.4, 0.0, 0.3)}, "bin_size must be three positive lengths"),
        ({"masses": (1.0, 2.0)}, "2 masses for 1 poses"),
        ({"masses": (0.0,)}, r"masses .*\(0.0,\)"),
        ({"seconds": 0.0}, r"seconds .* 0.0"),
        ({"friction": math.nan}, r"friction .* nan"),
    ],
)
def test_bad_arguments_are_refused(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = values_by_name(plan_of_boxes(((0.1, 0.1, 0), CUBE))) | change
    with pytest.raises(ValueError, match=message):
        settle(**arguments)  # type: ignore[arg-type]


def test_a_pose_far_outside_diverges_nowhere() -> None:
    box = Solid.of_box("box", np.array(CUBE))
    settled = settle((box,), (Pose(0, np.eye(3), np.array([3.0, 3.0, 1.0])),), BIN)
    assert np.isfinite(settled.moved).all()
    assert not settled.stable[0]
