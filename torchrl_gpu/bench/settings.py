"""What the packing benchmark measures: named environments, random legal actions, and the episodes behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.envs.packing.protocols import PROTOCOLS
from torchrl_gpu.policies.exploration import random_legal

# Stability rule and orientations decide what a step costs: none and 2, corners and 1, support and 2, none and 6.
BPP10: dict[str, dict[str, Any]] = {
    "bpp10": {},
    **{f"bpp10 {name}": PROTOCOLS[name] for name in ("cut2", "discrete125", "free125")},
}


def irregular(num_visible: int, num_objects: int, resolution: int, grid_step: int) -> dict[str, Any]:
    """Constructor arguments of the reference setting `irregular`, at another size.

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
    """Catalogue rows (R, T) of the first `count` episodes that row `row` of an environment will play."""
    episode = torch.arange(count, device=env.device)
    key = env.stream.begin(env.seed, torch.full_like(episode, row + env.first_env), episode)
    position = torch.arange(env.stream.length, device=env.device).expand(count, -1)
    return env.stream.items(key, position).cpu().numpy()


class Player:
    """Steps an environment with random legal actions drawn on its device; the time of resets is in it."""

    def __init__(self, env: PackingEnv) -> None:
        self.env = env
        self.current = env.reset()

    @torch.no_grad()
    def play(self, steps: int) -> None:
        """Goes on where it stopped."""
        for _ in range(steps):
            self.current["action"] = random_legal(self.current["action_mask"])
            _, self.current = self.env.step_and_maybe_reset(self.current)


def make(changes: dict[str, Any], num_envs: int, device: str, include: Sequence[str] = ()) -> PackingEnv:
    """An environment of the benchmark; seed 0."""
    return PackingEnv(num_envs, **changes | {"device": device, "seed": 0, "include": include})
