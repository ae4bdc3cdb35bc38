"""World pool: valid worlds on the device, with their first observations; a reset picks one by its number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchrl_gpu.envs.marine.dynamics import Unicycle, Vessel
from torchrl_gpu.envs.marine.generator import Worlds
from torchrl_gpu.envs.marine.sensors import Sight, object_mask, observation
from torchrl_gpu.envs.marine.types import OBSTACLE_RADIUS, Scene, contiguous_copy


@dataclass
class Begun:
    """Worlds before their first step; shapes as in `MarineState`."""

    scene: Tensor
    motion: Tensor
    clearance: Tensor
    exists: Tensor
    observation: Tensor
    object_mask: Tensor


class Pool:
    """World pool of P worlds, one behind the other in memory: to fetch one is to copy a few runs of numbers.

    They have the dtype and device of `like`. `look` returns sensor readings from motion, scene, and a mask of 0 and 1
    of the robots that exist; with `still_start` the first velocity leaves the current out.
    """

    def __init__(
        self,
        worlds: Worlds,
        model: Unicycle | Vessel,
        look: Callable[[Tensor, Scene, Tensor], Sight],
        like: Tensor,
        still_start: bool,
    ) -> None:
        scene = _scene(worlds, like)
        start = _last(worlds.start, (2, 1, 0), like), _last(worlds.heading, (1, 0), like)
        motion = model.start(*start, _last(worlds.speed, (1, 0), like), scene, still_start)
        numbers = torch.arange(motion.shape[1], device=like.device, dtype=torch.int64)
        exists = numbers[:, None] < worlds.num_robots.to(like.device)
        there = exists.to(like.dtype)
        sight = look(motion, scene, there)
        scene_rows, motion_rows = scene.joined(), motion.flatten(0, 1)
        self._shape, self._lengths = motion.shape[:2], (len(scene_rows), len(motion_rows), len(exists))
        self._numbers = torch.cat((scene_rows, motion_rows, sight.clearance)).t().contiguous()  # (P, …)
        self._exists = exists.t().contiguous()  # (P, R)
        self._observation, self._object_mask = observation(sight), object_mask(sight)

    def begin(self, world: Tensor) -> Begun:
        """Worlds by their numbers, int64 (N,)."""
        rows = contiguous_copy(self._numbers.index_select(0, world).t())
        scene, motion, clearance = rows.split(self._lengths)
        return Begun(
            scene,
            motion.view(*self._shape, len(world)),
            clearance,
            self._exists.index_select(0, world).t().contiguous(),
            self._observation.index_select(0, world),
            self._object_mask.index_select(0, world),
        )


def _scene(worlds: Worlds, like: Tensor) -> Scene:
    obstacle = _last(worlds.obstacle, (2, 1, 0), like)
    return Scene(
        goal=_last(worlds.goal, (2, 1, 0), like),
        core=_last(worlds.core, (2, 1, 0), like).unsqueeze(2),
        circulation=_last(worlds.circulation, (1, 0), like).unsqueeze(1),
        obstacle=obstacle,
        obstacle_radius=torch.full_like(obstacle[0], OBSTACLE_RADIUS),
    )


def _last(worlds_first: Tensor, axes: tuple[int, ...], like: Tensor) -> Tensor:
    return worlds_first.permute(axes).contiguous().to(like)
