"""Boxes drawn at random, and boxes cut from a full bin.

A bin that was cut can be packed completely, so that the best packing is known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.packing.items.cutting import MOST_FRESH_PIECES, Cells, CutSequences
from torchrl_gpu.envs.packing.items.source import Built, EndlessSequences, ItemSource, PooledSequences
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.envs.packing.types import Bin, Catalogue
from torchrl_gpu.system import arguments

MOST_SIDE = 2**20  # cells
# Volume of whole cells over that of the boxes: above the first a warning, above the second an error.
MOST_ROUNDING = 1.1, 10.0
# Rows of a catalogue of boxes.
MOST_SIZES = 1_000_000
# Boxes in all episodes of a pool that is cut.
MOST_PIECES = 10_000_000
# Orders of `CutBoxes`: whether it cuts layers.
_BY_LAYERS = {"layers": True, "stack": False}


def box_catalogue(sizes: np.ndarray, volume: np.ndarray, bin_: Bin, orientations: str | float) -> Catalogue:
    """Build the catalogue of boxes of sizes (M, 3) and volumes (M,).

    Sizes are whole cells, which are as high as they are long; volumes are cubic metres.

    ValueError where a box fits the bin in no orientation, or boxes are to be turned on cells that are not square.
    """
    turned = _turned(sizes, bin_, orientations)
    inside = _inside(turned, bin_)
    if not inside.all():
        cells = np.array([*bin_.cells, bin_.size[2] / bin_.cell[0]])
        raise ValueError(
            f"box_catalogue: every box must fit the bin of {cells.round(3).tolist()} cells in some orientation;"
            f" got a box of {sizes[~inside][0].tolist()} cells"
        )
    turned[..., 2] *= bin_.cell[0]
    return Catalogue.of_boxes(torch.from_numpy(turned), torch.from_numpy(np.asarray(volume, dtype=np.float64)))


def fits(sizes: np.ndarray, bin_: Bin, orientations: str | float) -> np.ndarray:
    """Return the mask (M,) of the boxes that fit a bin in some orientation.

    `sizes` (M, 3) are whole cells.
    """
    return _inside(_turned(sizes, bin_, orientations), bin_)


def _turned(sizes: np.ndarray, bin_: Bin, orientations: str | float) -> np.ndarray:
    """Cells of boxes (M, 3) in every orientation, (M, O, 3)."""
    rotations = np.abs(orientation_set(orientations, boxes=True)).round(9)
    if not math.isclose(*bin_.cell, rel_tol=1e-6) and len(rotations) > 1:
        raise ValueError(f"box_catalogue: cells must be square for boxes to be turned; got {bin_.cell} m")
    return np.ceil(np.einsum("oij,mj->moi", rotations, sizes.astype(np.float64)) - 1e-6)


def _inside(turned: np.ndarray, bin_: Bin) -> np.ndarray:
    cells = np.array([*bin_.cells, bin_.size[2] / bin_.cell[0]])
    return np.asarray((turned <= cells + 1e-6).all(-1).any(-1))


def whole_cells(sizes: np.ndarray, unit: str, bin_: Bin) -> np.ndarray:
    """Boxes (M, 3) of sizes in a unit, rounded up to whole cells."""
    return np.ceil(sizes * (np.array(bin_.per_unit(unit)) / bin_.per_unit("cells")) - 1e-6)


def check_rounding(where: str, sizes: np.ndarray, number: np.ndarray, unit: str, bin_: Bin) -> str:
    """Return a warning if `whole_cells` makes boxes a tenth larger, else "".

    `sizes` (M, 3) are counted `number` (M,) times.

    ValueError where the cells hold more than ten times the volume of the boxes.
    """
    cell = np.array(bin_.per_unit("cells")) / bin_.per_unit(unit)
    true, taken = sizes.prod(1), (whole_cells(sizes, unit, bin_) * cell).prod(1)
    factor = float((taken * number).sum() / (true * number).sum())
    if factor <= MOST_ROUNDING[0]:
        return ""
    worst = " × ".join(f"{side:g}" for side in sizes[int(((taken - true) * number).argmax())])
    came = (
        f"boxes such as {worst} {unit} in cells of {written(bin_.per_unit('cells'), unit, bin_)}, which rounded up to"
        f" whole cells take {factor:.3g} times their volume"
    )
    if factor > MOST_ROUNDING[1]:
        raise ValueError(
            f"{where}: the boxes are smaller than the cells: {came}; give bin_size in metres and a resolution of cells"
            " smaller than the boxes, as packing_orders.yaml does"
        )
    return f"{where}: {came}: smaller cells (a higher resolution) would cost less room"


def written(size: Iterable[float], unit: str, bin_: Bin) -> str:
    """Text of lengths along x, y and z, given in metres, in a unit."""
    return " × ".join(f"{s / per:g}" for s, per in zip(size, bin_.per_unit(unit), strict=True)) + f" {unit}"


def cell_volume(sizes: np.ndarray, bin_: Bin) -> np.ndarray:
    """Volumes of boxes (…, 3) given in whole cells, cubic metres."""
    return sizes.astype(np.float64).prod(-1) * bin_.cell_area * bin_.cell[0]


def _sides(where: str, min_side: object, max_side: object) -> tuple[int, int]:
    min_side = arguments.whole(where, "min_side", min_side, high=MOST_SIDE)
    max_side = arguments.whole(where, "max_side", max_side, high=MOST_SIDE)
    if not 1 <= min_side <= max_side:
        raise ValueError(
            f"{where}: min_side and max_side must be at least 1 and in order, not {min_side} and {max_side} cells"
        )
    return min_side, max_side


class RandomBoxes(ItemSource):
    """Boxes whose sides are drawn uniformly from whole cells.

    Args:
        min_side: Smallest side, cells.
        max_side: Largest side, cells.
        step: Sides are `min_side`, `min_side + step`, … up to `max_side`, cells; crates come in such modules.
    """

    unit = "cells"

    def __init__(self, min_side: int = 2, max_side: int = 5, step: int = 1) -> None:
        self.min_side, self.max_side = _sides("RandomBoxes", min_side, max_side)
        self.step = arguments.whole("RandomBoxes", "step", step, 1, MOST_SIDE)

    def build(self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int) -> Built:
        sides = range(self.min_side, self.max_side + 1, self.step)
        if len(sides) ** 3 > MOST_SIZES:
            raise ValueError(
                f"RandomBoxes: min_side and max_side must give at most {MOST_SIZES:,} sizes; got {len(sides) ** 3:,}"
            )
        sizes = np.array(list(itertools.product(sides, repeat=3)))
        catalogue = box_catalogue(sizes, cell_volume(sizes, bin_), bin_, orientations)
        return catalogue, EndlessSequences(catalogue.num_items, num_items)


class CutBoxes(ItemSource):
    """Boxes cut from a full bin, so that the optimum is 100%.

    A piece with a side above `max_side` is cut across a random such side until there is none, see `CutSequences`.

    Args:
        min_side: Smallest side, cells.
        max_side: Largest side, cells; at least 2·min_side − 1, or some sides could not be cut.
        order: "layers" (by height of the piece's base, equal ones as they were finished, by the walk of the released
            generator: CUT-1) or "stack" (a piece follows those that support it, otherwise at random, CUT-2). Zhao et
            al., AAAI 2021.
        pool: Sequences cut at construction; episodes draw from them. None cuts each episode its own, on the device.
        seed: Decides the pool; without one the environment's seed decides all.
    """

    unit = "cells"

    def __init__(
        self, min_side: int = 2, max_side: int = 5, order: str = "layers", pool: int | None = 4096, seed: int = 0
    ) -> None:
        self.min_side, self.max_side = _sides("CutBoxes", min_side, max_side)
        if max_side < 2 * min_side - 1:
            raise ValueError(f"CutBoxes: max_side must be at least 2·min_side − 1 = {2 * min_side - 1}; got {max_side}")
        self.order = arguments.choice("CutBoxes", "order", order, _BY_LAYERS)
        self.pool = None if pool is None else arguments.whole("CutBoxes", "pool", pool, 1, MOST_PIECES)
        self.seed = arguments.seed("CutBoxes", "seed", seed, low=0)
        if pool is None:
            arguments.check_effect("CutBoxes", "pool", seed=(self.seed, 0))

    def reseeded(self, seed: int) -> CutBoxes:
        return self if self.pool is None else CutBoxes(self.min_side, self.max_side, self.order, self.pool, seed)

    def build(self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int) -> Built:
        if self.pool is None:
            fresh = self.fresh(bin_, num_items)
            sizes = np.array(fresh.sizes())
            return box_catalogue(sizes, cell_volume(sizes, bin_), bin_, orientations), fresh
        episodes = self.cut(bin_)
        different = {size for _, size in itertools.chain.from_iterable(episodes)}
        sizes = np.array(sorted(different))
        row = {tuple(size): i for i, size in enumerate(sizes.tolist())}
        catalogue = box_catalogue(sizes, cell_volume(sizes, bin_), bin_, orientations)
        sequences = [_rows_of(episode[:num_items], row) for episode in episodes]
        return catalogue, PooledSequences(pad_sequences(sequences))

    def cut(self, bin_: Bin) -> list[list[tuple[Cells, Cells]]]:
        """Cut the pool of known packings.

        Each episode's pieces in order, (corner, size) in cells, fill the whole bin.
        """
        if self.pool is None:
            raise ValueError("CutBoxes: cut gives a pool, which this source has not; see fresh")
        whole = self._whole(bin_)
        least = self.pool * math.prod(whole) // self.max_side**3
        if least > MOST_PIECES:
            raise ValueError(
                f"CutBoxes: bin, max_side and pool must come to at most {MOST_PIECES:,} boxes; got at least {least:,}"
            )
        rng = np.random.default_rng(self.seed)
        if _BY_LAYERS[self.order]:
            return [self._layers(whole, rng) for _ in range(self.pool)]
        return [_by_stack(self._pieces(whole, rng), rng) for _ in range(self.pool)]

    def fresh(self, bin_: Bin, num_items: int) -> CutSequences:
        """Sequences without a pool, each cut when it is read."""
        whole = self._whole(bin_)
        if math.prod(len(range(self.min_side, min(side, self.max_side) + 1)) for side in whole) > MOST_SIZES:
            raise ValueError(f"CutBoxes: min_side and max_side must give at most {MOST_SIZES:,} sizes")
        fresh = CutSequences(whole, self.min_side, self.max_side, _BY_LAYERS[self.order], num_items)
        if fresh.most_pieces > MOST_FRESH_PIECES:
            raise ValueError(
                f"CutBoxes: without a pool a bin must fall into at most {MOST_FRESH_PIECES:,} boxes; got one that may"
                f" fall into {fresh.most_pieces:,}"
            )
        return fresh

    def _whole(self, bin_: Bin) -> Cells:
        height = bin_.size[2] / bin_.cell[0]
        if abs(height - round(height)) > 1e-6:
            raise ValueError(f"CutBoxes: the bin's height must be a whole number of cells; got {height}")
        whole = (*bin_.cells, round(height))
        if min(whole) < self.min_side:
            raise ValueError(f"CutBoxes: the bin must be at least {self.min_side} cells a side; got {whole}")
        return whole

    def _layers(self, whole: Cells, rng: np.random.Generator) -> list[tuple[Cells, Cells]]:
        """Cut one bin into layers as `CutSequences` does, without a limit on the steps."""
        done: list[tuple[Cells, Cells]] = []
        waiting: list[tuple[Cells, Cells]] = []
        (waiting if max(whole) > self.max_side else done).append(((0, 0, 0), whole))
        while waiting:
            stay, i = [], 0
            # The list grows while it is walked.
            while i < len(waiting):
                corner, size = waiting[i]
                long = [axis for axis in range(3) if size[axis] > self.max_side]
                axis = long[int(rng.random() * len(long))]
                length = 1 + int(rng.random() * size[axis])
                i += 1
                if min(length, size[axis] - length) < self.min_side:
                    stay.append((corner, size))
                    continue
                low = size[axis] - length if axis == 2 else length
                for start, extent in ((0, low), (low, size[axis] - low)):
                    part = _replaced(corner, axis, corner[axis] + start), _replaced(size, axis, extent)
                    (waiting if max(part[1]) > self.max_side else done).append(part)
                # The walk skips the next box.
                stay += waiting[i : i + 1]
                i += 1
            waiting = stay
        return sorted(done, key=lambda piece: piece[0][2])

    def _pieces(self, whole: Cells, rng: np.random.Generator) -> list[tuple[Cells, Cells]]:
        done: list[tuple[Cells, Cells]] = []
        open_: list[tuple[Cells, Cells]] = [((0, 0, 0), whole)]
        while open_:
            corner, size = open_.pop()
            long = [axis for axis in range(3) if size[axis] > self.max_side]
            if not long:
                done.append((corner, size))
                continue
            axis = long[int(rng.integers(len(long)))]
            at = int(rng.integers(self.min_side, size[axis] - self.min_side + 1))
            for start, length in ((0, at), (at, size[axis] - at)):
                open_.append((_replaced(corner, axis, corner[axis] + start), _replaced(size, axis, length)))
        return done


def _replaced(values: Cells, axis: int, value: int) -> Cells:
    out = list(values)
    out[axis] = value
    return out[0], out[1], out[2]


def _rows_of(pieces: list[tuple[Cells, Cells]], row: dict[Cells, int]) -> list[int]:
    """Catalogue rows of pieces, by the row of each size."""
    return [row[size] for _, size in pieces]


def _by_stack(pieces: list[tuple[Cells, Cells]], rng: np.random.Generator) -> list[tuple[Cells, Cells]]:
    # A piece may come as soon as all that support it have come. Sorting by height would be simpler, but then every
    # layer of the bin would be complete before the next one begins, and no stack would ever be seen.
    corner, size = np.array(pieces).transpose(1, 0, 2)  # (I, 3) each
    last = corner + size
    overlap = (corner[:, None, :2] < last[None, :, :2]) & (corner[None, :, :2] < last[:, None, :2])
    # Piece a supports piece b at (a, b).
    carries = overlap.all(-1) & (last[:, None, 2] == corner[None, :, 2])
    # Pieces that must come before each piece.
    missing = carries.sum(0)
    waiting, ordered = list(range(len(pieces))), []
    while waiting:
        free = [i for i in waiting if missing[i] == 0]
        chosen = free[int(rng.integers(len(free)))]
        waiting.remove(chosen)
        missing -= carries[chosen]
        ordered.append(pieces[chosen])
    return ordered


def pad_sequences(sequences: list[list[int]]) -> Tensor:
    """Pad sequences of different lengths to one int64 tensor (R, T).

    Behind the end of each is −1.
    """
    padded = [torch.tensor(sequence, dtype=torch.int64, device="cpu") for sequence in sequences]
    return torch.nn.utils.rnn.pad_sequence(padded, batch_first=True, padding_value=-1)
