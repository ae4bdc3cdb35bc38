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

Draw = Callable[[Mapping[str, np.ndarray], np.ndarray], np.ndarray]
"""Draws a picture (H, W, 3) uint8 of a row of observations and its action."""


def drawing_of(policy: InferencePolicy) -> Draw | None:
    """What draws the placements of a policy; None where it does not pack."""
    describes_bin = {"bin", "action_shape"} <= set(policy.space.extras)
    if not describes_bin or "box_heightmap" not in policy.in_keys:
        return None
    return partial(_draw, policy.space)


def _draw(space: AgentSpace, row: Mapping[str, np.ndarray], action: np.ndarray) -> np.ndarray:
    """A bin from above, and the placement of the item."""
    about = space.extras["bin"]
    width, depth, height = map(float, about["size"])
    pile = Pile(row["box_heightmap"], (width, depth, height), int(about["step"]))
    return draw_action(pile, _placing(space, row, int(action)), WIDTH, HEIGHT, "this placement")


def _placing(space: AgentSpace, row: Mapping[str, np.ndarray], action: int) -> Placing | None:
    """The chosen placement; None where it is illegal, as all are where nothing fits, or the item has no size."""
    if "item_size" not in row or ("action_mask" in row and not row["action_mask"].flat[action]):
        return None
    about = space.extras["bin"]
    slot, orientation, *place = (int(each) for each in np.unravel_index(action, tuple(space.extras["action_shape"])))
    size = row["item_size"][slot, orientation]
    extent, corner = [], []
    for axis in (0, 1):
        cells = int(about["cells"][axis])
        cell = float(about["size"][axis]) / cells
        extent.append(min(max(1, math.ceil(float(size[axis]) / cell - 1e-4)), cells))
        corner.append(max(0, min(place[axis] * int(about["step"]), cells - extent[axis])))
    (x, y), (p, q) = corner, extent
    base = float(row["box_heightmap"][x : x + p, y : y + q].max())  # of boxes; solids may sink in
    z = float(row["z_map"][slot, orientation, place[0], place[1]]) if "z_map" in row else base
    return Placing(None, orientation, (x, y), (p, q), z, float(size[2]))
