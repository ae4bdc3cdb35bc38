"""Worlds of marine navigation that are recorded while they are played, to be drawn later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.types import HEADING, PLACE

if TYPE_CHECKING:
    from torchrl_gpu.envs.marine.viewer import Snapshot  # draws, which runs without pictures do without

MOST_FRAMES = 150  # of a film


@dataclass(frozen=True)
class Trajectories:
    """Positions of the robots of k worlds over time, on the CPU; moment 0 is the start."""

    index: tuple[int, ...]  # numbers of the worlds
    worlds: tuple[Snapshot, ...]  # how they ended
    length: Tensor  # (k,) int64, moments of each until it was over
    place: Tensor  # (T, k, R, 2) metres; a world that is over stays as it is
    heading: Tensor  # (T, k, R), radians
    arrived: Tensor  # (T, k, R) bool, as is `collided`
    collided: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Trajectories]) -> Trajectories:
        longest = max(len(part.place) for part in parts)

        def of_all(name: str) -> Tensor:
            values = [getattr(part, name) for part in parts]
            return torch.cat([torch.cat((v, v[-1:].expand(longest - len(v), *v.shape[1:]))) for v in values], 1)

        return cls(
            index=sum((part.index for part in parts), ()),
            worlds=sum((part.worlds for part in parts), ()),
            length=torch.cat([part.length for part in parts]),
            **{name: of_all(name) for name in ("place", "heading", "arrived", "collided")},
        )

    def world(self, which: int, moment: int) -> Snapshot:
        """One of the worlds, of k, at a moment."""
        at = moment, which
        parts = {name: getattr(self, name)[at].numpy() for name in ("place", "heading", "arrived", "collided")}
        return replace(self.worlds[which], **parts)

    def picture(self, which: int, moment: int | None = None, width: int = 640) -> Tensor:
        """A world with the trails up to a moment, its end by default: uint8 (width, width, 3)."""
        from torchrl_gpu.envs.marine.viewer import draw

        moment = int(self.length[which]) - 1 if moment is None else moment
        trail = self.place[: moment + 1, which].numpy()
        drawn = draw(self.world(which, moment), trail, width=width, height=width)
        return torch.tensor(drawn, dtype=torch.uint8, device="cpu")

    def film(self, which: int, width: int = 480) -> Tensor:
        """A world from its start to its end, uint8 (T, width, width, 3), in equal strides of which there are few."""
        last = int(self.length[which]) - 1
        stride = -(-last // MOST_FRAMES) or 1
        moments = [*range(0, last, stride), last]
        return torch.stack([self.picture(which, moment, width) for moment in moments])


class TrajectoryRecorder:
    """Takes down some worlds of an environment at every moment."""

    def __init__(self, env: MarineNavEnv, index: Sequence[int]) -> None:
        self.env, self.index = env, tuple(index)
        self._which = torch.tensor(self.index, dtype=torch.int64, device=env.device)
        self._length = torch.zeros_like(self._which)
        self._over = torch.zeros_like(self._which, dtype=torch.bool)
        self._motion: list[Tensor] = []
        self._ends: list[Tensor] = []
        self.record(torch.zeros(env.num_envs, dtype=torch.bool, device=env.device))

    def record(self, over: Tensor) -> None:
        if not self.index:
            return
        self._length += ~self._over
        self._over = over[self._which]
        s = self.env.state
        motion = torch.cat((s.motion[PLACE], s.motion[HEADING : HEADING + 1]))
        self._motion.append(motion.index_select(2, self._which))  # (3, R, k)
        self._ends.append(torch.stack((s.arrived, s.collided)).index_select(2, self._which))  # (2, R, k)

    def trajectories(self) -> Trajectories | None:
        if not self.index:
            return None
        from torchrl_gpu.envs.marine.viewer import snapshot

        motion = torch.stack(self._motion).permute(0, 3, 2, 1).double().cpu()  # (T, k, R, 3)
        arrived, collided = torch.stack(self._ends).permute(1, 0, 3, 2).cpu()
        number = tuple(self.env.first_env + i for i in self.index)
        worlds = tuple(snapshot(self.env, i) for i in self.index)
        return Trajectories(number, worlds, self._length.cpu(), motion[..., :2], motion[..., 2], arrived, collided)
