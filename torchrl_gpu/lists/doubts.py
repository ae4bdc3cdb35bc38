"""Values that are possible and unlikely.

They are shown, and packing waits for the user's word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchrl_gpu.lists.box_list import BoxList
from torchrl_gpu.lists.units import LENGTHS
from torchrl_gpu.lists.words import tokens

# Sides of a box, millimetres, beyond which a list is probably in another unit.
LEAST_SIDE_MM = 10.0
MOST_SIDE_MM = 4000.0
# Weight of a box that no two persons lift, kilograms.
MOST_BOX_KG = 400.0
# Kilograms in a litre: packed goods lie between pillows and bricks, and lead has 11.
LEAST_DENSITY = 0.004
MOST_DENSITY = 8.0
_MOST_QUANTITY = 10_000
# Sides of an empty pallet.
LEAST_PALLET_MM = 600.0
MOST_PALLET_HEIGHT_MM = 200.0
_PALLET_WORDS = frozenset(("pallet", "pallets", "palette", "paletten", "europalette", "palet", "paleta", "pal"))


def unlikely_values(found: BoxList) -> list[str]:
    """Return a sentence for each kind of unlikely value.

    It names the first line of them, and how many there are.
    """
    if not found.sizes or found.unit == "cells":
        return []
    lines = []
    for labels in found.labels:
        lines += [label["line"] for label in labels]
    boxes = _Boxes(
        np.array(lines),
        np.concatenate(found.sizes) * LENGTHS[found.unit],
        np.concatenate(found.weights),
        found.own_weight_unit,
    )
    return [*boxes.unlikely_sides(), *boxes.unlikely_weights(), *_pallets(found)]


def _pallets(found: BoxList) -> list[str]:
    """Return a sentence about a row that is an empty pallet, by its name and sides."""
    for sizes, labels in zip(found.sizes, found.labels, strict=True):
        for size, label in zip(sizes, labels, strict=True):
            name = str(label.get("article", ""))
            if "pal" not in name.casefold() or not _PALLET_WORDS.intersection(tokens(name)):
                continue
            sides_mm = size * LENGTHS[found.unit]
            if sides_mm[:2].min() >= LEAST_PALLET_MM and sides_mm[2] <= MOST_PALLET_HEIGHT_MM:
                return [f'line {label["line"]}: "{name}" may be a pallet, and is read as a box']
    return []


class _Boxes:
    """Boxes of a list.

    Lines are (B,), sides (B, 3), in millimetres, weights (B,), in kilograms, NaN where they are not known.
    """

    def __init__(self, lines: np.ndarray, sizes_mm: np.ndarray, weights_kg: np.ndarray, weight_unit: str) -> None:
        self.lines = lines
        self.sizes_mm = sizes_mm
        self.weights_kg = weights_kg
        self.weight_unit = weight_unit
        self.litres = sizes_mm.prod(1) / 1e6

    def unlikely_sides(self) -> list[str]:
        least = self.sizes_mm.min(1)
        most = self.sizes_mm.max(1)
        found = []
        small = np.flatnonzero(least < LEAST_SIDE_MM)
        if len(small):
            found.append(self._sentence(small, f"a side of {least[small[0]]:g} mm is very small: is the unit right?"))
        large = np.flatnonzero(most > MOST_SIDE_MM)
        if len(large):
            found.append(self._sentence(large, f"a side of {most[large[0]]:g} mm is very large: is the unit right?"))
        return found

    def unlikely_weights(self) -> list[str]:
        question = f"is it the weight of one box, in {self.weight_unit}?"
        # A comparison with NaN is False: a box without a weight is not unlikely.
        density = self.weights_kg / self.litres
        is_heavy = self.weights_kg > MOST_BOX_KG
        found = []
        heavy = np.flatnonzero(is_heavy)
        if len(heavy):
            found.append(self._sentence(heavy, f"a box of {self.weights_kg[heavy[0]]:g} kg is very heavy: {question}"))
        dense = np.flatnonzero((density > MOST_DENSITY) & ~is_heavy)
        if len(dense):
            found.append(self._sentence(dense, f"{self._amount(dense[0])} is heavier than metal: {question}"))
        light = np.flatnonzero(density < LEAST_DENSITY)
        if len(light):
            found.append(self._sentence(light, f"{self._amount(light[0])} is lighter than foam: {question}"))
        return found

    def _amount(self, box: int) -> str:
        return f"{self.weights_kg[box]:g} kg in {self.litres[box]:.3g} litres"

    def _sentence(self, boxes: np.ndarray, words: str) -> str:
        rows = len(np.unique(self.lines[boxes]))
        sentence = f"line {self.lines[boxes[0]]}: {words}"
        return f"{sentence} ({rows:,} such rows)" if rows > 1 else sentence


def unlikely_quantities(lines: Sequence[int], quantities: Sequence[int]) -> list[str]:
    """Return a sentence about rows of very many boxes."""
    for line, number in zip(lines, quantities, strict=True):
        if number > _MOST_QUANTITY:
            return [f"line {line}: {number:,} boxes in one row: is this column the quantity?"]
    return []
