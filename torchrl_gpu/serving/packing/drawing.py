"""The last placement of a policy server that packs, drawn on its page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from torchrl_gpu.envs.packing.render.top_view import Pile, Placing, draw_action
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.policies.spaces import AgentSpace

WIDTH = 480  # pixels
HEIGHT = 320  # pixels
# By how much of a cell an item may be larger than its cells, since sizes are rounded.
_SLACK = 1e-4

Draw = Callable[[Mapping[str, np.ndarray], np.ndarray], np.ndarray]
"""Draws a picture (H, W, 3) uint8 of a row of observations and its action."""


def drawing_of(policy: InferencePolicy) -> Draw | None:
    """Return what draws the placements of a policy.

    It is None if the policy does not pack.
    """
    describes_bin = {"bin", "action_shape"} <= set(policy.space.extras)
    if not describes_bin or "box_heightmap" not in policy.in_keys:
        return None
    return partial(_draw, policy.space)


def _draw(space: AgentSpace, row: Mapping[str, np.ndarray], action: np.ndarray) -> np.ndarray:
    """Draw a bin from above, and the placement of the item."""
    bin_facts = space.extras["bin"]
    width, depth, height = map(float, bin_facts["size"])
    size = (width, depth, height)
    pile = Pile(row["box_heightmap"], size, int(bin_facts["step"]))
    return draw_action(pile, _placing(space, row, int(action)), WIDTH, HEIGHT, "this placement")


def _placing(space: AgentSpace, row: Mapping[str, np.ndarray], action: int) -> Placing | None:
    """Return the chosen placement.

    It is None if it is illegal, as all are when nothing fits, or the item has no size.
    """
    if "item_size" not in row or ("action_mask" in row and not row["action_mask"].flat[action]):
        return None
    indices = np.unravel_index(action, tuple(space.extras["action_shape"]))
    slot = int(indices[0])
    orientation = int(indices[1])
    gx = int(indices[2])
    gy = int(indices[3])
    size = row["item_size"][slot, orientation]
    # The fourth number is the volume, which no drawing shows.
    length, width, height = map(float, size[:3])
    x, p = _span(space, 0, length, gx)
    y, q = _span(space, 1, width, gy)
    # The top of the pile is where a box comes to rest; solids may sink in.
    z = float(row["box_heightmap"][x : x + p, y : y + q].max())
    if "z_map" in row:
        z = float(row["z_map"][slot, orientation, gx, gy])
    return Placing(None, orientation, (x, y), (p, q), z, height)


def _span(space: AgentSpace, axis: int, side: float, place: int) -> tuple[int, int]:
    """Return the first cell of an item along an axis, and how many it covers."""
    bin_facts = space.extras["bin"]
    cells = int(bin_facts["cells"][axis])
    cell = float(bin_facts["size"][axis]) / cells
    needed = math.ceil(side / cell - _SLACK)
    covered = min(max(1, needed), cells)
    step = int(bin_facts["step"])
    # The last place of the grid is flush with the wall, wherever whole steps would end.
    first = max(0, min(place * step, cells - covered))
    return first, covered
