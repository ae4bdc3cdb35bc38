"""Environments of the packing benchmark by name, and the episodes behind them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.result_types import JsonObject
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.envs.packing.protocols import PROTOCOLS

# Arguments of `PackingEnv` by name.
Changes = JsonObject

# Stability rule and orientations decide what a step costs: none and 2, corners and 1, support and 2, none and 6.
BPP10: dict[str, Changes] = {
    "bpp10": {},
    "bpp10 cut2": PROTOCOLS["cut2"],
    "bpp10 discrete125": PROTOCOLS["discrete125"],
    "bpp10 free125": PROTOCOLS["free125"],
}


def irregular(num_visible: int, num_objects: int, resolution: int, grid_step: int) -> Changes:
    """Return the arguments of the reference setting `irregular`, at another size.

    Args:
        num_visible: K.
        num_objects: Objects of the catalogue.
        resolution: Cells along x and y.
        grid_step: Cells between placements.
    """
    return {
        "bin_size": (0.4, 0.4, 0.3),
        "resolution": resolution,
        "grid_step": grid_step,
        "items": ProceduralSolids(num_objects),
        "num_items": 50,
        "visible_items": num_visible,
        "orientations": "cube",
    }


def episodes_of(env: PackingEnv, row: int, count: int) -> np.ndarray:
    """Catalogue rows of the first episodes that a row of an environment will play.

    Args:
        env: The environment.
        row: One of its rows.
        count: R, episodes.

    Returns:
        (R, T) int64, −1 behind the end of each.
    """
    episode = torch.arange(count, device=env.device)
    world = torch.full_like(episode, row + env.first_env)
    key = env.item_sequences.begin(env.seed, world, episode)
    position = torch.arange(env.item_sequences.length, device=env.device).expand(count, -1)
    return env.item_sequences.items(key, position).cpu().numpy()


def make(changes: Changes, num_envs: int, device: str, include: Sequence[str] = ()) -> PackingEnv:
    """Make an environment of the benchmark, with seed 0."""
    given = changes | {"device": device, "seed": 0, "include": include}
    return PackingEnv(num_envs, **given)
