"""Viewer interface of `MarineNavEnv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.overlays import Choice, draw_actions, draw_range, draw_values
from torchrl_gpu.envs.marine.types import GOAL_RADIUS, VELOCITY
from torchrl_gpu.envs.marine.viewer import HULLS, Snapshot, draw, snapshot
from torchrl_gpu.envs.packing.render.palette import item_colors
from torchrl_gpu.envs.viewable import Decision, Overlay, Shape

# Colours RGBA, in [0, 1].
_FRAME = (0.55, 0.59, 0.65, 1.0)
_OBSTACLE = (0.37, 0.42, 0.47, 1.0)
_CRASH = (0.82, 0.2, 0.17, 1.0)

# Trails are kept of this many worlds, those that were drawn last.
_MOST_TRAILS = 64


class ViewableMarine:
    """`Viewable` of a `MarineNavEnv`, with overlays and shapes.

    A trail joins the positions of a robot in the pictures that were drawn of an episode.
    """

    def __init__(self, env: MarineNavEnv) -> None:
        self.env = env
        self.trails: dict[int, tuple[int, list[np.ndarray]]] = {}

    @property
    def num_envs(self) -> int:
        return self.env.num_envs

    @torch.no_grad()
    def metrics(self) -> Mapping[str, Tensor]:
        """Metrics by name, (N,) each.

        `step`, `episode` and `level`; `return`, the mean over the robots of a world; `active`, `arrived` and
        `collided`, numbers of robots.
        """
        s = self.env.state
        num_robots = s.exists.sum(0).clamp_min(1)
        mean_return = s.score.sum(0) / num_robots
        return {
            "step": s.step_count,
            "episode": s.episode,
            "return": mean_return,
            "level": s.level,
            "active": s.active.sum(0),
            "arrived": s.arrived.sum(0),
            "collided": s.collided.sum(0),
        }

    def pictures(self, index: Sequence[int], width: int, height: int) -> np.ndarray:
        return np.stack([draw(*self._seen(each), width=width, height=height) for each in index])

    def shapes(self, index: int) -> list[Shape]:
        """Return the shapes of one world.

        They are the map's edges, the obstacles, then each robot that exists with its goal. Reads the device.
        """
        world = snapshot(self.env, index)
        middle = (world.side / 2, world.side / 2, 0.0)
        found = [Shape("outline", middle, (world.side, world.side, 0.0), _FRAME)]
        for x, y, radius in world.obstacle.tolist():
            found.append(Shape("cylinder", (x, y, 0.5), (2 * radius, 2 * radius, 1.0), _OBSTACLE))
        numbers = torch.arange(len(world.place), dtype=torch.int64, device="cpu")
        colors = item_colors(numbers).tolist()
        for i in np.flatnonzero(world.exists).tolist():
            around = 2 * GOAL_RADIUS
            found.append(Shape("cylinder", (*world.goal[i].tolist(), 0.0), (around, around, 0.05), (*colors[i], 0.5)))
            color = _CRASH if world.collided[i] else (*colors[i], 1.0)
            half = world.heading[i] / 2
            turn = (float(np.cos(half)), 0.0, 0.0, float(np.sin(half)))
            length, width = HULLS[world.version]
            found.append(Shape("cuboid", (*world.place[i].tolist(), 0.25), (length, width, 0.5), color, turn))
        return found

    @property
    def overlays(self) -> Mapping[str, Overlay]:
        """Overlays of detection and next actions, and of the values of discrete actions."""
        found = {"range": Overlay("Detection", "env"), "action": Overlay("Next actions", "action")}
        if self.env.num_actions:
            found["q"] = Overlay("Q of actions", "values")
        return found

    def observation(self, index: int) -> TensorDictBase:
        return self.env.observation(index)

    @torch.no_grad()
    def overlay(self, name: str, index: int, width: int, height: int, decision: Decision | None) -> np.ndarray:
        world, trail = self._seen(index)
        active = self.env.state.active[:, index].cpu().numpy()
        if name == "range":
            clearance = self.env.state.clearance[:, index].double().cpu().numpy()
            return draw_range(world, trail, active, clearance, width, height)
        assert decision is not None
        speed = np.linalg.norm(self.env.state.motion[VELOCITY, :, index].double().cpu().numpy(), axis=0)
        chosen = decision.action.cpu().numpy().reshape(len(active), -1)
        choice = Choice(chosen if self.env.num_actions == 0 else chosen[:, 0], active, speed)
        if name == "action":
            return draw_actions(world, trail, choice, width, height)
        assert decision.values is not None
        values = decision.values.float().cpu().numpy().reshape(len(active), -1)
        return draw_values(world, trail, choice, values, width, height)

    def _seen(self, index: int) -> tuple[Snapshot, np.ndarray]:
        world = snapshot(self.env, index)
        episode = int(self.env.state.episode[index])
        trail_episode, trail = self.trails.pop(index, (episode, []))
        if trail_episode != episode:
            trail = []
        # A world may be drawn several times between two steps, by its own stream and by those of its overlays.
        last = trail[-1] if trail else None
        if last is None or not np.array_equal(last, world.place):
            trail.append(world.place)
        self.trails[index] = episode, trail
        if len(self.trails) > _MOST_TRAILS:
            # The first entry is the trail that has not been drawn for the longest time.
            self.trails.pop(next(iter(self.trails)))
        return world, np.stack(trail)


def viewable(env: MarineNavEnv) -> ViewableMarine:
    """Return the `Viewable` of an environment, for `torchrl_gpu.envs.viewable`."""
    return ViewableMarine(env)
