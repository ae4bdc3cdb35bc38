"""Laws of statics that the linear program of a pile must obey, by hand."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("scipy")

from benchmarks.equilibrium import BoxPile, contacts_of, pile_of, side_force, stands
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.plan import PackingPlan, Pose

PALLET = (2.0, 2.0)
EPSILON = 1e-4  # metres


def boxes(*rows: tuple[float, ...], weight: list[float] | None = None) -> BoxPile:
    """Pile of boxes (x, y, z, length, width, height) in metres.

    All are of one density by default.
    """
    numbers = np.array(rows)
    sides = numbers[:, 3:]
    return BoxPile(numbers[:, :3], sides, sides.prod(1) if weight is None else np.array(weight), PALLET)


def test_box_on_pallet_stands_and_box_in_the_air_falls() -> None:
    assert stands(boxes((0, 0, 0, 0.4, 0.3, 0.2)))
    assert not stands(boxes((0, 0, 0.001, 0.4, 0.3, 0.2)))
    assert stands(boxes((0, 0, 0.001, 0.4, 0.3, 0.2)), gap=0.002)


def test_box_over_the_edge_of_the_pallet_falls_past_its_middle() -> None:
    assert stands(boxes((1.8 - EPSILON, 0, 0, 0.4, 0.3, 0.2)))
    assert not stands(boxes((1.8 + EPSILON, 0, 0, 0.4, 0.3, 0.2)))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("sign", [-1, 1])
def test_overhang_of_half_is_the_limit(axis: int, sign: int) -> None:
    for overhang, expected in ((0.2 - EPSILON, True), (0.2 + EPSILON, False)):
        low = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.3]])
        low[1, axis] += sign * overhang
        pile = BoxPile(low, np.array([[0.4, 0.4, 0.3], [0.4, 0.4, 0.1]]), np.array([1.0, 1.0]), PALLET)
        assert stands(pile) is expected


def test_box_on_two_falls_when_one_no_longer_reaches_it() -> None:
    left = (0, 0, 0, 0.15, 0.3, 0.2)
    plank = (0, 0, 0.2, 0.5, 0.3, 0.1)
    assert stands(boxes(left, (0.35, 0, 0, 0.15, 0.3, 0.2), plank))
    # 1 mm too low: the left box alone ends before the middle of the plank.
    assert not stands(boxes(left, (0.35, 0, 0, 0.15, 0.3, 0.199), plank))
    assert stands(boxes((0, 0, 0, 0.25 + EPSILON, 0.3, 0.2), plank))


@pytest.mark.parametrize("levels", [2, 3, 4, 6])
def test_harmonic_tower_is_the_limit(levels: int) -> None:
    def tower(error: float) -> BoxPile:
        rows = []
        x = 1.0
        # From the top, the k-th box reaches 1/(2k) of its length past the one below it.
        for number in range(levels):
            rows.append((x, 0.5, 0.1 * (levels - 1 - number), 0.4, 0.4, 0.1))
            x -= 0.4 / (2 * (number + 1)) + error
        return boxes(*rows)

    assert stands(tower(-EPSILON))
    assert not stands(tower(EPSILON))


def test_counterweight_holds_a_lever() -> None:
    # Over a fulcrum from 0.9 to 1.1 a plank of weight 1 reaches from 0.5 to 1.5. The load of weight 4 at 1.45 tips it
    # about 1.1 by 4 · 0.35, less the plank's 1 · 0.1. A weight at 0.55 has an arm of 0.55.
    fulcrum = (0.9, 0.5, 0, 0.2, 0.2, 0.2)
    plank = (0.5, 0.5, 0.2, 1.0, 0.2, 0.05)
    load = (1.4, 0.5, 0.25, 0.1, 0.2, 0.1)
    counterweight = (0.5, 0.5, 0.25, 0.1, 0.2, 0.1)
    limit = (4 * 0.35 - 1 * 0.1) / 0.55
    assert not stands(boxes(fulcrum, plank, load, weight=[1, 1, 4]))
    for weight, expected in ((limit - 0.01, False), (limit + 0.01, True)):
        assert stands(boxes(fulcrum, plank, load, counterweight, weight=[1, 1, 4, weight])) is expected
    # At the other end of its range the lever tips about 0.9: both arms are the other way round.
    most = (4 * 0.55 + 1 * 0.1) / 0.35
    for weight, expected in ((most - 0.01, True), (most + 0.01, False)):
        assert stands(boxes(fulcrum, plank, load, counterweight, weight=[1, 1, 4, weight])) is expected


def on_legs(*heights: float) -> BoxPile:
    """A plate at 10 cm over legs below its corners.

    The first and the second share a side, and so do the first and the third.
    """
    places = [(0, 0), (0.3, 0), (0, 0.3), (0.3, 0.3)]
    legs = [(x, y, 0, 0.1, 0.1, height) for (x, y), height in zip(places, heights, strict=True)]
    return boxes(*legs, (0, 0, 0.1, 0.4, 0.4, 0.05))


def test_plate_rests_on_three_of_four_unequal_legs() -> None:
    assert stands(on_legs(0.1, 0.1, 0.1, 0.099))
    # Two across hold it by their width.
    assert stands(on_legs(0.1, 0.099, 0.099, 0.1))
    beside = on_legs(0.1, 0.1, 0.099, 0.099)
    assert not stands(beside)
    assert stands(beside, gap=0.0015)
    assert not stands(on_legs(0.1, 0.099, 0.099, 0.099))


def test_push_that_a_box_bears_is_friction_or_half_its_base_over_half_its_height() -> None:
    low = boxes((0, 0, 0, 0.4, 0.4, 0.2))
    assert side_force(low) == pytest.approx(0.5)
    assert side_force(low, friction=0.3) == pytest.approx(0.3)
    assert side_force(boxes((0, 0, 0, 0.4, 0.2, 0.8))) == pytest.approx(0.25)
    assert side_force(boxes((0, 0, 0.01, 0.4, 0.4, 0.2))) == 0


def test_push_that_a_shifted_box_bears_is_what_its_overhang_leaves() -> None:
    # 5 cm of its base are left before the middle, which is 20 cm high.
    pile = boxes((1.0, 1.0, 0, 0.4, 0.4, 0.1), (1.15, 1.0, 0.1, 0.4, 0.4, 0.4))
    assert side_force(pile) == pytest.approx(0.25)


def test_contacts_are_where_boxes_lie_on_each_other() -> None:
    pile = boxes((0, 0, 0, 0.4, 0.4, 0.2), (0.4, 0, 0, 0.4, 0.4, 0.2), (0.3, 0.1, 0.2, 0.4, 0.4, 0.1))
    found = contacts_of(pile)
    assert [(contact.upper, contact.lower) for contact in found] == [(0, -1), (1, -1), (2, 0), (2, 1)]
    np.testing.assert_allclose(found[2].corners[[0, -1]], [[0.3, 0.1, 0.2], [0.4, 0.4, 0.2]])
    np.testing.assert_allclose(found[3].corners[[0, -1]], [[0.4, 0.1, 0.2], [0.7, 0.4, 0.2]])


def test_pile_of_a_plan_has_its_boxes_as_they_are_turned() -> None:
    quarter = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    solid = Solid.of_box("a", np.array([0.4, 0.3, 0.2]))
    plan = PackingPlan((solid,), (Pose(0, quarter, np.array([0.5, 0.1, 0.0])),), (1.2, 0.8, 2.0), walls=False)
    pile = pile_of(plan)
    np.testing.assert_allclose(pile.low, [[0.2, 0.1, 0.0]], atol=1e-12)
    np.testing.assert_allclose(pile.sides, [[0.3, 0.4, 0.2]])
    np.testing.assert_allclose(pile.weight, [0.024])
    assert pile.pallet == (1.2, 0.8)
    assert pile_of(plan._replace(masses=(7.0,))).weight.tolist() == [7.0]


def test_no_box_stands() -> None:
    empty = BoxPile(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0), PALLET)
    assert stands(empty)
