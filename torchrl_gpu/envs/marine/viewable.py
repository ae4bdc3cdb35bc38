"""Worlds to watch while robots cross them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.viewer import draw, snapshot


class ViewableMarine:
    """The worlds of a `MarineNavEnv`.

    A trail joins the places at which pictures of an episode were asked for.

    Args:
        env: Looked at whenever something is asked.
    """

    def __init__(self, env: MarineNavEnv) -> None:
        self.env = env
        self._trails: dict[int, tuple[int, list[np.ndarray]]] = {}

    @property
    def num_envs(self) -> int:
        """N."""
        return self.env.num_envs

    @torch.no_grad()
    def figures(self) -> Mapping[str, Tensor]:
        """`step`, `episode`, `return` (mean over the robots of a world), `level`, `active`, `arrived` and `collided`
        (robots), (N,) each."""
        s = self.env.state
        return {
            "step": s.step_count,
            "episode": s.episode,
            "return": s.score.sum(0) / s.exists.sum(0).clamp_min(1),
            "level": s.level,
            "active": s.active.sum(0),
            "arrived": s.arrived.sum(0),
            "collided": s.collided.sum(0),
        }

    def pictures(self, index: Sequence[int], width: int, height: int) -> np.ndarray:
        """uint8 (B, H, W, 3)."""
        return np.stack([self._picture(each, width, height) for each in index])

    def _picture(self, index: int, width: int, height: int) -> np.ndarray:
        world, episode = snapshot(self.env, index), int(self.env.state.episode[index])
        begun, trail = self._trails.get(index, (episode, []))
        if begun != episode:
            trail = []
        trail.append(world.place)
        self._trails[index] = episode, trail
        return draw(world, np.stack(trail), width=width, height=height)


def viewable(env: MarineNavEnv) -> ViewableMarine:
    """What `torchrl_gpu.envs.viewable` looks for."""
    return ViewableMarine(env)
