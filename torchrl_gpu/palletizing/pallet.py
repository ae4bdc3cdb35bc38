"""`Pallet`: a pallet, what may be loaded on it, and the cells of its floor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.types import MOST_CELLS, Bin

# Height of a pallet that boxes may stick out of, above the empty space around it.
DECK_M = 0.02
# Cells of a pallet.
MOST_FLOOR = 2**20
# Cells that a length has but for rounding errors count as whole.
_ROUNDING = 1e-6
# Length, width and most height of the load, metres: usual pallets, and the containers of RoboBPP (arXiv 2512.04415).
PRESETS = {
    "eur": (1.2, 0.8, 1.5),
    "1200x1000": (1.2, 1.0, 1.5),
    "48x40": (1.2192, 1.016, 1.5),
    "repetitive": (1.34, 1.25, 1.0),
    "diverse": (1.2, 1.0, 1.7),
    "boards": (2.5, 1.2, 1.0),
}


# Kilograms and height, metres, of the pallets themselves: EPAL 1 and EPAL 3, and a GMA pallet.
OWN_WEIGHT_AND_HEIGHT = {"eur": (25.0, 0.144), "1200x1000": (30.0, 0.144), "48x40": (20.4, 0.14)}


@dataclass(frozen=True)
class Pallet:
    """A pallet, what may be loaded on it, and the cells of its floor.

    Args:
        length, width: Metres.
        height: Most height of the load, metres.
        weight: Most weight of the load, kilograms.
        gap: Free room between neighbouring boxes, metres.
        overhang: What boxes may stick out over each edge, metres.
        cell: Side of a cell, metres.
        own_weight: Kilograms of the pallet itself, 0 where they are not known.
        own_height: Its height, metres, 0 where it is not known.
    """

    length: float
    width: float
    height: float
    weight: float = math.inf
    gap: float = 0.0
    overhang: float = 0.0
    cell: float = 0.01
    own_weight: float = 0.0
    own_height: float = 0.0

    @property
    def cells(self) -> tuple[int, int]:
        """Cells along length and width, those of the overhang included."""
        return self._cells_along(self.length), self._cells_along(self.width)

    def _cells_along(self, side: float) -> int:
        # The last box has no neighbour, and so its share of the gap may lie beyond the edge.
        more = 2 * self.overhang + self.gap
        return math.floor((side + more) / self.cell + _ROUNDING)

    @property
    def deck(self) -> float:
        """Height of the pallet's top above the zero of the heightmap.

        It is 0 where nothing may stick out, as there is no space around the pallet then.
        """
        return DECK_M if self.overhang > 0 else 0.0

    @property
    def origin(self) -> tuple[float, float]:
        """Corner of the first cell, metres from the corner of the pallet."""
        x, y = self.cells
        return (self.length - x * self.cell) / 2, (self.width - y * self.cell) / 2

    @property
    def volume(self) -> float:
        """Room for the load, cubic metres, without what may stick out."""
        return self.length * self.width * self.height

    def bin(self, stability: str, step: int = 1) -> Bin:
        """Make the bin of the heightmap.

        Raises:
            ValueError: The pallet has too many cells, or none.
        """
        x, y = self.cells
        if not 1 <= min(x, y) <= max(x, y) <= MOST_CELLS or x * y > MOST_FLOOR:
            raise ValueError(
                f"Pallet: cells of {self.cell:g} m divide it into {x:,} × {y:,}: choose cells such that there are 1 to"
                f" {MOST_FLOOR:,}, at most {MOST_CELLS:,} along a side"
            )
        size = (x * self.cell, y * self.cell, self.height + self.deck)
        return Bin(size, (x, y), step, stability)

    def floor(self, device: torch.device) -> Tensor:
        """Heightmap of the empty pallet, metres, (X, Y) float32.

        It is `deck` over the pallet and 0 around it.
        """
        cells_x, cells_y = self.cells
        first_x, first_y = self.origin
        is_over_x = self._is_over(cells_x, first_x, self.length, device)
        is_over_y = self._is_over(cells_y, first_y, self.width, device)
        return torch.where(is_over_x[:, None] & is_over_y, self.deck, 0.0).float()

    def _is_over(self, cells: int, first: float, side: float, device: torch.device) -> Tensor:
        """Whether the middle of each cell along an axis is over the pallet, (cells,) bool."""
        middle = (torch.arange(cells, device=device, dtype=torch.float32) + 0.5) * self.cell + first
        return (middle >= 0) & (middle <= side)
