"""Whole episodes of marine navigation, and what is counted about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import NestedKey
from torch import Tensor

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.specs import GROUP
from torchrl_gpu.envs.marine.types import DT, PLACE, SUBSTEPS
from torchrl_gpu.evaluation.marine.trajectories import Trajectories, TrajectoryRecorder
from torchrl_gpu.evaluation.results import DecisionClock, Results, evaluation
from torchrl_gpu.policies.policy import Policy

# Discount of an action in the papers' "discounted reward".
GAMMA = 0.99

# Actions between two looks at which worlds are over.
BETWEEN_READS = 20


@dataclass(frozen=True)
class NavigationMetrics:
    """Metrics of some worlds, None where there is nothing to take a mean of.

    Attributes:
        worlds: How many.
        success: Share of the worlds in which all robots arrived.
        arrived: Share of the robots.
        collided: Share of the robots.
        collision_rate: Share of the worlds with a collision.
        time: Mean of the robots that count, see `NavigationResults.counted`, seconds.
        energy: Mean of those, units of the environment.
        returned: Mean return of a robot.
        discounted: Mean discounted return of a robot.
    """

    worlds: int
    success: float
    arrived: float
    collided: float
    collision_rate: float
    time: float | None
    energy: float | None
    returned: float
    discounted: float


_NAMED = ("success", "arrived", "collided", "collision_rate", "time", "energy")
SCORES = (*_NAMED, "return", "discounted_return", "success_level_*")
"""Names in `NavigationResults.scores`, as patterns."""


@dataclass(frozen=True, kw_only=True)
class NavigationResults(Results):
    """Results of the R robots of E worlds, (E, R) unless said otherwise.

    Attributes:
        level: Row of the curriculum, (E,) int64.
        exists: Which robots there are, bool.
        arrived: Which robots arrived, bool.
        collided: Which robots collided, bool.
        steps: Actions that a robot made before it arrived, collided, or its world was over, int64.
        energy: Spent in them.
        returned: Sums of rewards.
        discounted: Discounted sums of rewards.
        end_on_collision: Whether the first collision ended a world.
        start: Where each robot began, (E, R, 2), metres.
        goal: Where it was to go, (E, R, 2), metres.
        trajectories: Of the worlds that were recorded.
    """

    level: Tensor
    exists: Tensor
    arrived: Tensor
    collided: Tensor
    steps: Tensor
    energy: Tensor
    returned: Tensor
    discounted: Tensor
    end_on_collision: bool
    start: Tensor | None = None
    goal: Tensor | None = None
    trajectories: Trajectories | None = None

    @property
    def success(self) -> Tensor:
        """Worlds all of whose robots arrived, (E,) bool."""
        return (self.arrived | ~self.exists).all(1)

    @property
    def time(self) -> Tensor:
        """Seconds that each robot was under way."""
        return self.steps * (DT * SUBSTEPS)

    @property
    def counted(self) -> Tensor:
        """Robots whose time and energy count, (E, R) bool: all that arrived.

        Where the first collision ended a world, those of successful worlds alone: robots that were under way then never
        showed theirs.
        """
        if not self.end_on_collision:
            return self.arrived
        return self.arrived & self.success[:, None]

    def metrics(self, level: int | None = None) -> NavigationMetrics:
        """Metrics of the worlds of a row, or of all worlds."""
        mine = torch.ones_like(self.success) if level is None else self.level == level
        exists = self.exists[mine]
        counted = self.counted[mine]
        collided = self.collided[mine]
        some = bool(counted.any())
        arrived = self.arrived[mine][exists]
        returned = self.returned[mine][exists]
        discounted = self.discounted[mine][exists]
        time = self.time[mine][counted]
        energy = self.energy[mine][counted]
        return NavigationMetrics(
            worlds=int(mine.sum()),
            success=_mean(self.success[mine]),
            arrived=_mean(arrived),
            collided=_mean(collided[exists]),
            collision_rate=_mean(collided.any(1)),
            time=_mean(time) if some else None,
            energy=_mean(energy) if some else None,
            returned=_mean(returned),
            discounted=_mean(discounted),
        )

    def scores(self) -> dict[str, float]:
        """Metrics by name, and the success of each row.

        Time and energy are left out where no robot counts.
        """
        values = vars(self.metrics())
        scores = {name: values[name] for name in _NAMED if values[name] is not None}
        scores["return"] = values["returned"]
        scores["discounted_return"] = values["discounted"]
        for level in self.level.unique().tolist():
            scores[f"success_level_{level}"] = self.metrics(level).success
        return scores


def _mean(values: Tensor) -> float:
    return values.double().mean().item()


def evaluate(
    env: MarineNavEnv, policy: Policy, num_episodes: int | None = None, record: Sequence[int] = ()
) -> NavigationResults:
    """Play the first episode of every world of the environment's seed, greedily.

    A world that is over stays as it ended, in `env.state` too, while others go on. Only the worlds of the first
    `num_episodes` environments are played, None for all, and `record` are those whose `trajectories` are kept.
    """
    number = env.num_envs if num_episodes is None else num_episodes
    clock = DecisionClock(env.device)
    action_key: NestedKey = "action" if env.flat else (GROUP, "action")
    reward_key: NestedKey = "reward" if env.flat else (GROUP, "reward")
    with evaluation(env, policy) as seen:
        recorder = TrajectoryRecorder(env, record)
        over = torch.arange(env.num_envs, device=env.device, dtype=torch.int64) >= number
        _stop(env, over)
        start = env.state.motion[PLACE].permute(2, 1, 0)
        steps = torch.zeros_like(env.state.active, dtype=torch.int64)  # (R, N)
        discounted = torch.zeros_like(env.state.score)
        weight = 1.0

        def decide() -> Tensor:
            """Actions of all worlds.

            Only those of worlds that go on are asked for, since that takes the time.
            """
            if len(running) == env.num_envs:
                return policy(seen).get(action_key)
            some: Tensor = policy(seen[running]).get(action_key)
            everywhere = some.new_zeros(env.num_envs, *some.shape[1:])
            return everywhere.index_copy_(0, running, some)

        running = (~over).nonzero().squeeze(1)
        while len(running):
            for step in range(BETWEEN_READS):
                action = decide() if step else clock.time(len(running), decide)
                steps += env.state.active
                stepped = env.step(seen.set(action_key, action))
                reward = stepped["next"].get(reward_key).reshape(env.num_envs, -1)
                discounted += weight * reward.t()
                weight *= GAMMA
                over |= stepped["next", "done"].squeeze(-1)
                recorder.record(over)
                _stop(env, over)
                seen = env.step_mdp(stepped)
            running = (~over).nonzero().squeeze(1)
    s = env.state
    per_robot = {
        "exists": s.exists,
        "arrived": s.arrived,
        "collided": s.collided,
        "energy": s.energy,
        "steps": steps,
        "returned": s.score,
        "discounted": discounted,
    }
    found: dict[str, Any] = {name: value.t()[:number].cpu() for name, value in per_robot.items()}
    goal = env.scene.goal.permute(2, 1, 0)
    return NavigationResults(
        level=s.level[:number].cpu(),
        **found,
        end_on_collision=env.end_on_collision,
        start=start[:number].cpu(),
        goal=goal[:number].cpu(),
        trajectories=recorder.trajectories(),
        **clock.times(),
    )


def _stop(env: MarineNavEnv, over: Tensor) -> None:
    """Let nobody take part in worlds that are over, so that nothing there changes."""
    env._set_env_state(vars(env.state) | {"active": env.state.active & ~over})
