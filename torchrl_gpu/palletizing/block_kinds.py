"""Kinds of boxes of an order, each way to lay them, and blocks of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchrl_gpu.palletizing.packer import Packer
from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.plan import Placements
from torchrl_gpu.palletizing.prepared_boxes import PreparedBoxes

# Lengths of blocks are whole nanometres, so that sums of sides are exact: a third of an inch is no decimal number.
PER_METRE = 1_000_000_000
# Noise of float64 in a length, nanometres.
_NOISE = 1e-3
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Kinds:
    """Kinds of boxes of an order, K of them, and V ways to lay them.

    Attributes:
        boxes: Numbers in the list, the heaviest first, of each kind.
        volume: Cubic metres, (K,).
        weight: Kilograms of the heaviest, (K,).
        max_load: Kilograms that may be put on a box, inf for any, (K,).
        layers: Boxes that may stand on one another, (K,) int64.
        bottom_only: Mask of the kinds that stand on the pallet itself, (K,) bool.
        kind: Of each way, (V,) int64.
        sides: Nanometres along x, y and z of each way with the gap to the next box, (V, 3) int64.
        along: Listed sides along x, y and z of each way, (V, 3) int64.
        pressure: Kilograms on the base of each way, as a share of the most, (V,).
        is_upright: Mask of the ways with the listed height up, and of all ways of kinds that have none, (V,) bool.
    """

    boxes: list[np.ndarray]
    volume: np.ndarray
    weight: np.ndarray
    max_load: np.ndarray
    layers: np.ndarray
    bottom_only: np.ndarray
    kind: np.ndarray
    sides: np.ndarray
    along: np.ndarray
    pressure: np.ndarray
    is_upright: np.ndarray

    @property
    def is_closed(self) -> np.ndarray:
        """Mask of the kinds on which nothing may stand, (K,) bool."""
        return self.max_load <= 0

    @property
    def load(self) -> np.ndarray:
        """Kilograms that a box of each kind counts on others, (K,).

        A box of unknown weight goes on no box that bears only so much.
        """
        return np.where(self.weight > 0, self.weight, np.inf)

    def count(self) -> np.ndarray:
        """Boxes of each kind, (K,) int64."""
        return np.array([len(each) for each in self.boxes])


@dataclass(frozen=True)
class Block:
    """Equal boxes side by side and on one another, all turned alike.

    Attributes:
        way: How they lie, a row of `Kinds.sides`.
        x, y, z: Lower corner, nanometres.
        number: Boxes along x, y and z.
    """

    way: int
    x: int
    y: int
    z: int
    number: tuple[int, int, int]


@dataclass(frozen=True)
class BlockBoxes:
    """Boxes of some blocks, P of them, from the pallet up.

    Attributes:
        kind: (P,) int64.
        way: (P,) int64.
        corner: Metres from the pallet's corner, (P, 3).
        sides: Metres with the gap to the next box, (P, 3).
    """

    kind: np.ndarray
    way: np.ndarray
    corner: np.ndarray
    sides: np.ndarray


def kinds_of(packer: Packer, prepared: PreparedBoxes, boxes: np.ndarray) -> Kinds:
    """Find the kinds of an order.

    Args:
        packer: Of the pallet and the turns.
        prepared: All boxes.
        boxes: Numbers of the boxes of the order, (…) int64.
    """
    row = prepared.row.cpu().numpy()[boxes]
    weights = prepared.boxes.weights.numpy()
    of_kind = []
    for each in np.unique(row).tolist():
        mine = boxes[row == each]
        of_kind.append(mine[np.argsort(-weights[mine], kind="stable")])
    first = np.array([mine[0] for mine in of_kind])
    listed = prepared.boxes.sizes.numpy()[first]
    weight = weights[first]
    max_load = prepared.boxes.max_load.numpy()[first]
    bottom_only = prepared.boxes.bottom_only.numpy()[first]
    kind: list[int] = []
    along: list[np.ndarray] = []
    sides: list[tuple[int, ...]] = []
    for number, box in enumerate(first.tolist()):
        ways = _ways(packer, prepared, box)
        kind += [number] * len(ways)
        along += ways.values()
        sides += ways
    of_way = np.array(kind)
    along_of_way = np.array(along)
    sides_nm = np.array(sides, dtype=np.int64)
    layers = np.where(bottom_only, 1, _layers(max_load, weight))
    pressure = _pressure(weight[of_way], sides_nm)
    is_upright = _is_upright(of_way, along_of_way)
    return Kinds(
        of_kind,
        listed.prod(1),
        weight,
        max_load,
        layers,
        bottom_only,
        kind=of_way,
        sides=sides_nm,
        along=along_of_way,
        pressure=pressure,
        is_upright=is_upright,
    )


def _ways(packer: Packer, prepared: PreparedBoxes, box: int) -> dict[tuple[int, ...], np.ndarray]:
    """Listed sides along x, y and z of each way to lay a box.

    Keys are its sides in nanometres.
    """
    listed = prepared.boxes.sizes[box].numpy()
    gap = packer.pallet.gap
    along_of_turn = packer.rotations.argmax(2).numpy()
    allowed = np.flatnonzero(prepared.turns[int(prepared.row[box])].cpu().numpy())
    ways: dict[tuple[int, ...], np.ndarray] = {}
    for along in along_of_turn[allowed]:
        metres = listed[along] + [gap, gap, 0.0]
        # Rounded down: rounded up, three thirds of a side would not fit it. Boxes overlap by less than a nanometre.
        nanometres = np.floor(metres * PER_METRE + _NOISE).astype(np.int64)
        ways.setdefault(tuple(nanometres.tolist()), along)
    return ways


def _layers(max_load: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Boxes of each kind that may stand on one another, (K,) int64."""
    layers = np.full(len(weight), np.iinfo(np.int32).max)
    for kind in np.flatnonzero(np.isfinite(max_load)).tolist():
        layers[kind] = 1
        # A box of unknown weight goes on no box that bears only so much.
        if weight[kind] > 0:
            layers[kind] += math.floor(max_load[kind] / weight[kind] + _ROUNDING)
    return layers


def _is_upright(kind: np.ndarray, along: np.ndarray) -> np.ndarray:
    has_height_up = along[:, 2] == 2
    has_some = np.isin(kind, kind[has_height_up])
    return has_height_up | ~has_some


def _pressure(weight: np.ndarray, sides: np.ndarray) -> np.ndarray:
    base = sides[:, :2].astype(float).prod(1)
    pressure = weight / base
    most = float(pressure.max())
    return pressure / most if most > 0 else pressure


def unfold(kinds: Kinds, blocks: list[Block]) -> BlockBoxes:
    """Return the boxes of blocks, row by row in each height.

    Every box comes after those below it.
    """
    ways = [np.zeros(0, dtype=np.int64)]
    corners = [np.zeros((0, 3), dtype=np.int64)]
    for block in blocks:
        count = math.prod(block.number)
        place = np.stack(np.unravel_index(np.arange(count), block.number), 1)
        lower = np.array([block.x, block.y, block.z])
        corners.append(place * kinds.sides[block.way] + lower)
        ways.append(np.full(count, block.way))
    corner = np.concatenate(corners)
    order = np.lexsort((corner[:, 0], corner[:, 1], corner[:, 2]))
    way = np.concatenate(ways)[order]
    return BlockBoxes(kinds.kind[way], way, corner[order] / PER_METRE, kinds.sides[way] / PER_METRE)


def placements_of(
    kinds: Kinds, blocks: list[Block], served: np.ndarray, *, number: int, first_step: int, pallet: Pallet
) -> Placements:
    """Return the placements of a pallet's blocks.

    The heaviest boxes of a kind are the lowest.

    Args:
        kinds: Of the order.
        blocks: Of the pallet.
        served: Boxes of each kind that are on other pallets, (K,) int64.
        number: Of the pallet in its order.
        first_step: Of the pallet.
        pallet: Gives the gap.
    """
    boxes = unfold(kinds, blocks)
    count = len(boxes.kind)
    chosen = np.zeros(count, dtype=np.int64)
    for kind in np.unique(boxes.kind).tolist():
        mine = boxes.kind == kind
        first = int(served[kind])
        chosen[mine] = kinds.boxes[kind][first : first + int(mine.sum())]
    order = np.zeros(count, dtype=np.int64)
    step = first_step + np.arange(count)
    on_pallet = np.full(count, number)
    along = kinds.along[boxes.way]
    gap = np.array([pallet.gap, pallet.gap, 0.0])
    return Placements(order, step, chosen, on_pallet, along, corner=boxes.corner, sides=boxes.sides - gap)
