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
    pile = Pile(row["box_heightmap"], (width, depth, height), int(bin_facts["step"]))
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
    place = (int(indices[2]), int(indices[3]))
    size = row["item_size"][slot, orientation]
    x, p = _span(space, 0, float(size[0]), place[0])
    y, q = _span(space, 1, float(size[1]), place[1])
    # The top of the pile is where a box comes to rest; solids may sink in.
    z = float(row["box_heightmap"][x : x + p, y : y + q].max())
    if "z_map" in row:
        z = float(row["z_map"][slot, orientation, place[0], place[1]])
    return Placing(None, orientation, (x, y), (p, q), z, float(size[2]))


def _span(space: AgentSpace, axis: int, side: float, place: int) -> tuple[int, int]:
    """Return the first cell of an item along an axis, and how many it covers."""
    bin_facts = space.extras["bin"]
    cells = int(bin_facts["cells"][axis])
    cell = float(bin_facts["size"][axis]) / cells
    covered = min(max(1, math.ceil(side / cell - _SLACK)), cells)
    first = max(0, min(place * int(bin_facts["step"]), cells - covered))
    return first, covered
