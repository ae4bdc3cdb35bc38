"""Trajectories of robots, recorded while worlds of marine navigation are played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.types import HEADING, PLACE

if TYPE_CHECKING:
    from torchrl_gpu.envs.marine.viewer import Snapshot

# The viewer, which draws, is imported where something is drawn, since most runs draw nothing.

# Most pictures of a film, one less than there may be: the last moment always has one.
MOST_FRAMES = 150

# What changes from moment to moment.
_OF_A_MOMENT = ("place", "heading", "arrived", "collided")


@dataclass(frozen=True)
class Trajectories:
    """Positions of the robots of k worlds over time, on the CPU.

    The first moment is the start. A world that is over repeats its last moment.

    Attributes:
        index: Numbers of the worlds.
        worlds: Their last moments.
        length: Number of moments of each until it was over, (k,) int64.
        place: (T, k, R, 2), metres.
        heading: (T, k, R), radians.
        arrived: (T, k, R) bool.
        collided: (T, k, R) bool.
    """

    index: tuple[int, ...]
    worlds: tuple[Snapshot, ...]
    length: Tensor
    place: Tensor
    heading: Tensor
    arrived: Tensor
    collided: Tensor

    @classmethod
    def join(cls, parts: Sequence[Trajectories]) -> Trajectories:
        """Join the worlds of several batches.

        Shorter ones repeat their last moments.
        """
        longest = max(len(part.place) for part in parts)

        def join_moments(name: str) -> Tensor:
            values = [_prolong(getattr(part, name), longest) for part in parts]
            return torch.cat(values, 1)

        index: tuple[int, ...] = ()
        worlds: tuple[Snapshot, ...] = ()
        for part in parts:
            index += part.index
            worlds += part.worlds
        return cls(
            index=index,
            worlds=worlds,
            length=torch.cat([part.length for part in parts]),
            place=join_moments("place"),
            heading=join_moments("heading"),
            arrived=join_moments("arrived"),
            collided=join_moments("collided"),
        )

    def world(self, which: int, moment: int) -> Snapshot:
        """Return world number `which` of the k worlds, at a moment."""
        at = moment, which
        parts = {name: getattr(self, name)[at].numpy() for name in _OF_A_MOMENT}
        return replace(self.worlds[which], **parts)

    def picture(self, which: int, moment: int | None = None, width: int = 640) -> Tensor:
        """Draw a world with the trails up to a moment, by default its last.

        Returns:
            uint8 (width, width, 3).
        """
        from torchrl_gpu.envs.marine.viewer import draw

        if moment is None:
            moment = int(self.length[which]) - 1
        trail = self.place[: moment + 1, which].numpy()
        drawn = draw(self.world(which, moment), trail, width=width, height=width)
        return torch.tensor(drawn, dtype=torch.uint8, device="cpu")

    def film(self, which: int, width: int = 480) -> Tensor:
        """Draw a world from its start to its end, uint8 (T, width, width, 3), T ≤ 151."""
        last = int(self.length[which]) - 1
        # A world that was over at once has one moment.
        stride = -(-last // MOST_FRAMES) or 1
        moments = [*range(0, last, stride), last]
        return torch.stack([self.picture(which, moment, width) for moment in moments])


def _prolong(values: Tensor, length: int) -> Tensor:
    """Repeat the last of values (T, …) up to a length."""
    last = values[-1:].expand(length - len(values), *values.shape[1:])
    return torch.cat((values, last))


class TrajectoryRecorder:
    """Recorder of robot positions of some worlds at every step.

    They stay on the device until the end, since a copy at every step would make the host wait.
    """

    def __init__(self, env: MarineNavEnv, index: Sequence[int]) -> None:
        self.env = env
        self.index = tuple(index)
        self._which = torch.tensor(self.index, dtype=torch.int64, device=env.device)
        self._length = torch.zeros_like(self._which)
        self._over = torch.zeros_like(self._which, dtype=torch.bool)
        self._motion: list[Tensor] = []
        self._ends: list[Tensor] = []
        # The start is the first moment, at which no world is over.
        over = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        self.record(over)

    def record(self, over: Tensor) -> None:
        """Record the current positions.

        Args:
            over: Which worlds have ended, (N,) bool.
        """
        if not self.index:
            return
        # A world that was over before is not under way any more.
        self._length += ~self._over
        self._over = over[self._which]
        state = self.env.state
        motion = torch.cat((state.motion[PLACE], state.motion[HEADING : HEADING + 1]))
        ends = torch.stack((state.arrived, state.collided))
        self._motion.append(motion.index_select(2, self._which))  # (3, R, k)
        self._ends.append(ends.index_select(2, self._which))  # (2, R, k)

    def trajectories(self) -> Trajectories | None:
        """Return what was recorded, or None if no world is."""
        if not self.index:
            return None
        from torchrl_gpu.envs.marine.viewer import snapshot

        motion = torch.stack(self._motion).permute(0, 3, 2, 1).double().cpu()  # (T, k, R, 3)
        arrived, collided = torch.stack(self._ends).permute(1, 0, 3, 2).cpu()
        number = tuple(self.env.first_env + i for i in self.index)
        worlds = tuple(snapshot(self.env, i) for i in self.index)
        return Trajectories(
            index=number,
            worlds=worlds,
            length=self._length.cpu(),
            place=motion[..., :2],
            heading=motion[..., 2],
            arrived=arrived,
            collided=collided,
        )
