"""Places of boxes on open pallets, by hand and by laws."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from torchrl_gpu.palletizing import Boxes, Packer, Pallet

CUBE = Pallet(4.0, 4.0, 4.0, cell=1.0)


def sequence(packer: Packer, boxes: Boxes) -> list[tuple[int, list[float], list[float]]]:
    """Pallet, corner and sides of boxes of one row that come one at a time."""
    prepared = packer.prepare(boxes)
    found = []
    state = packer.begin(prepared, [np.arange(len(boxes.sizes))])
    for box in range(len(boxes.sizes)):
        choice = packer.choose(state, prepared, torch.tensor([[box]]))
        corner, sides = packer.corner(choice, prepared)
        found.append((int(choice.number), corner[0].tolist(), sides[0].tolist()))
        state = packer.place(state, prepared, choice)
    return found


@pytest.mark.parametrize("policy", ["hm", "dbl", "lsah", "first-fit", "orders"])
def test_eight_cubes_fill_a_cube_and_the_next_opens_another(policy: str) -> None:
    packer = Packer(CUBE, policy=policy, device="cpu")
    found = sequence(packer, Boxes.of([[2.0, 2.0, 2.0]] * 10))
    assert [number for number, _, _ in found] == [0] * 8 + [1] * 2
    assert len({tuple(corner) for _, corner, _ in found[:8]}) == 8
    assert found[8][1] == [0.0, 0.0, 0.0]


def test_every_fault_of_a_box_has_its_reason() -> None:
    sizes = [[2.0, 2.0, 2.0], [5.0, 1.0, 1.0], [1.0, 1.0, 5.0], [4.0, 4.0, 4.0], [2.0, 2.0, 2.0]]
    prepared = Packer(Pallet(4.0, 4.0, 4.0, weight=9.0, cell=1.0), device="cpu").prepare(
        Boxes.of(sizes, weights=[9.0, 1.0, 1.0, 1.0, 10.0])
    )
    assert [bool(reason) for reason in prepared.reasons] == [False, True, True, False, True]
    assert ["longer" in prepared.reasons[1], "higher" in prepared.reasons[2], "heavier" in prepared.reasons[4]] == [
        True
    ] * 3


def test_a_box_lies_down_unless_it_must_stay_upright() -> None:
    packer = Packer(Pallet(4.0, 4.0, 2.0, cell=1.0), turns="axis", device="cpu")
    prepared = packer.prepare(Boxes.of([[1.0, 1.0, 4.0]] * 2, upright=[True, False]))
    assert [bool(reason) for reason in prepared.reasons] == [True, False]
    choice = packer.choose(packer.empty(1), prepared, torch.tensor([[1]]))
    assert sorted(packer.corner(choice, prepared)[1][0, :2].tolist()) == [1.0, 4.0]


def test_a_box_lies_only_on_sides_that_it_may() -> None:
    boxes = Boxes.of([[1.0, 2.0, 3.0]] * 4)
    up = torch.tensor([[True, False, False], [False, True, False], [False, False, True], [True, True, True]])
    packer = Packer(Pallet(9.0, 9.0, 9.0, cell=1.0), turns="axis", device="cpu")
    prepared = packer.prepare(boxes._replace(up=up))
    found = [
        packer.corner(packer.choose(packer.empty(1), prepared, torch.tensor([[i]])), prepared)[1] for i in range(3)
    ]
    assert [sides[0, 2].item() for sides in found] == [1.0, 2.0, 3.0]
    assert prepared.turns.sum(1).sort().values.tolist() == [2, 2, 2, 6]
    turned = Packer(Pallet(9.0, 9.0, 9.0, cell=1.0), device="cpu").prepare(boxes._replace(up=up))
    assert ["may not stand" in reason for reason in turned.reasons] == [True, True, False, False]


@pytest.mark.parametrize(
    ("pallet", "options", "boxes", "numbers"),
    [
        # Weight opens a pallet before room does.
        ({"weight": 3.0}, {}, Boxes.of([[1.0, 1.0, 1.0]] * 5, weights=[1.5] * 5), [0, 0, 1, 1, 2]),
        # Nothing is put on fragile goods.
        ({"height": 9.0}, {}, Boxes.of([[2.0, 2.0, 1.0]] * 3, max_load=[math.inf, 0, math.inf]), [0, 0, 1]),
        # The second box would cover a hollow on the first pallet, whose one low cell the third one fills.
        (
            {},
            {"open_pallets": 2, "stability": "none"},
            Boxes.of([[2.0, 1.0, 1.0], [2.0, 2.0, 1.5], [2.0, 2.0, 0.5], [2.0, 1.0, 1.0]]),
            [0, 1, 1, 0],
        ),
        # The third closes the second, fuller one: the first takes the last box.
        ({}, {"open_pallets": 2}, Boxes.of([[2.0, 2.0, height] for height in (1.5, 1.8, 1.0, 0.5)]), [0, 1, 2, 0]),
    ],
)
def test_packer_opens_pallets_as_by_hand(
    pallet: dict[str, float], options: dict[str, object], boxes: Boxes, numbers: list[int]
) -> None:
    chosen = replace(Pallet(2.0, 2.0, 2.0, cell=1.0), **pallet)
    packer = Packer(chosen, **options, device="cpu")  # type: ignore[arg-type]
    assert [number for number, _, _ in sequence(packer, boxes)] == numbers


@pytest.mark.parametrize(
    ("weights", "loads", "numbers"),
    [
        # Two on the first, whatever is between.
        ([5, 5, 5, 5], [10, 99, 99, 99], [0, 0, 0, 1]),
        ([5, 5, 5, 5], [99, 5, 99, 99], [0, 0, 0, 1]),
        ([5, 5, 5, 5], [15, 10, 5, 0], [0, 0, 0, 0]),
        # A box of unknown weight goes on no limited box.
        ([5, 0, 5, 5], [99, 99, 99, 99], [0, 1, 1, 1]),
        ([5, 0, 5, 5], [math.inf, 5, 99, 99], [0, 0, 0, 1]),
    ],
)
def test_packer_keeps_most_loads_by_hand(weights: list[float], loads: list[float], numbers: list[int]) -> None:
    packer = Packer(Pallet(2.0, 2.0, 9.0, cell=1.0), device="cpu")
    found = sequence(packer, Boxes.of([[2.0, 2.0, 1.0]] * 4, weights, max_load=loads))
    assert [number for number, _, _ in found] == numbers


def bearers(box: tuple[np.ndarray, np.ndarray], below: list[tuple[np.ndarray, np.ndarray]]) -> set[int]:
    """Boxes (corner, sides) that a box lies on, and those that these lie on."""
    found = set()
    for i, (corner, sides) in enumerate(below):
        apart = np.maximum(corner, box[0])[:2] - np.minimum(corner + sides, box[0] + box[1])[:2]
        if (apart < -1e-6).all() and abs(corner[2] + sides[2] - box[0][2]) < 1e-6:
            found |= {i} | bearers(below[i], below[:i])
    return found


@pytest.mark.parametrize("rule", ["load_bearing", "support"])
def test_no_box_bears_more_than_its_most_load(rule: str) -> None:
    rng = np.random.default_rng(0)
    packer = Packer(Pallet(0.6, 0.4, 0.8, cell=0.05), open_pallets=2, stability=rule, device="cpu")
    sizes, weights = rng.integers(2, 5, (60, 3)) * 0.05, rng.uniform(1, 9, 60)
    loads = np.where(rng.random(60) < 0.6, rng.uniform(0, 30, 60), np.inf)
    over = {}
    for limited in (True, False):
        boxes = Boxes.of(sizes, weights, max_load=loads if limited else math.inf)
        pallets: dict[int, list[int]] = {}
        found = [(number, np.array(corner), np.array(sides)) for number, corner, sides in sequence(packer, boxes)]
        for i, (number, _, _) in enumerate(found):
            pallets.setdefault(number, []).append(i)
        load = np.zeros(60)
        for on in pallets.values():
            for at, i in enumerate(on):
                under = bearers(found[i][1:], [found[j][1:] for j in on[:at]])
                load[[on[j] for j in under]] += weights[i]
        over[limited] = int((load > loads * (1 + 1e-5)).sum())
    assert over[True] == 0
    assert over[False] > 5


def test_boxes_keep_their_gap_and_stick_out_no_further_than_they_may() -> None:
    packer = Packer(
        Pallet(0.4, 0.4, 1.0, gap=0.02, overhang=0.1, cell=0.01), stability="support", policy="dbl", device="cpu"
    )
    found = sequence(packer, Boxes.of([[0.29, 0.29, 0.2]] * 5))
    corners = [corner for _, corner, _ in found]
    assert [number for number, _, _ in found] == [0] * 5
    lower = np.array(corners)
    assert (lower[:, :2] >= -0.1 - 1e-9).all()
    assert (lower[:, :2] <= 0.5 - 0.29 + 1e-9).all()
    assert lower[:, :2].min() < 0
    assert lower[:4, 2].tolist() == [0.0] * 4
    apart = np.abs(lower[1:4, :2] - lower[0, :2]).max(1)
    assert apart.min() >= 0.29 + 0.02 - 1e-9


def test_space_around_the_pallet_is_no_floor() -> None:
    packer = Packer(Pallet(0.2, 0.2, 1.0, overhang=0.2, cell=0.01), stability="none", device="cpu")
    found = sequence(packer, Boxes.of([[0.1, 0.1, 0.1]] * 4))
    lower = np.array([corner for _, corner, _ in found])
    assert (lower[:, :2] > -0.1).all()
    assert (lower[:, :2] < 0.2).all()


def test_rows_are_packed_as_each_would_be_alone() -> None:
    torch.manual_seed(0)
    packer = Packer(Pallet(8.0, 6.0, 8.0, cell=1.0), open_pallets=2, device="cpu")
    boxes = Boxes.of(torch.randint(1, 5, (60, 3)).double())
    prepared = packer.prepare(boxes)
    offers = torch.arange(60).view(3, 20)

    def packed(rows: list[int]) -> list[list[int]]:
        state = packer.empty(len(rows))
        seen = []
        for step in range(18):
            offered = offers[rows][:, step : step + 3]
            choice = packer.choose(state, prepared, offered)
            state = packer.place(state, prepared, choice)
            seen.append(torch.stack([choice.box, choice.number, choice.x, choice.y], 1))
        return torch.stack(seen, 1).tolist()

    assert packed([0, 1, 2]) == [*packed([0]), *packed([1]), *packed([2])]


def test_packer_packs_on_measured_heightmap() -> None:
    packer = Packer(CUBE, device="cpu")
    prepared = packer.prepare(Boxes.of([[2.0, 2.0, 2.0]] * 2))
    first = packer.choose(packer.empty(1), prepared, torch.tensor([[0]]))
    state = packer.place(packer.empty(1), prepared, first)
    state = packer.set_heightmap(state, 0, 0, torch.full((4, 4), 1.5))
    choice = packer.choose(state, prepared, torch.tensor([[1]]))
    assert float(choice.z) == 1.5
    with pytest.raises(ValueError, match="heightmap"):
        packer.set_heightmap(state, 0, 0, torch.zeros(3, 4))


def test_pallets_of_too_many_cells_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.0001 m .* 12,000 × 8,000"):
        Packer(Pallet(1.2, 0.8, 1.5, cell=1e-4), device="cpu")
