"""Whole episodes of marine navigation, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

# Actions between two checks which worlds are over. Each check makes the host wait for the device.
BETWEEN_READS = 20


@dataclass(frozen=True)
class NavigationMetrics:
    """Metrics of some worlds, in which the mean of nothing is None.

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
        steps: Actions of a robot until it arrived, collided, or its world was over, int64.
        energy: Spent by these actions.
        returned: Sums of rewards.
        discounted: Discounted sums of rewards.
        end_on_collision: Whether the first collision ended a world.
        start: Where each robot began, (E, R, 2), metres.
        goal: Where it should go, (E, R, 2), metres.
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
        """Whether all robots of a world arrived, (E,) bool."""
        return (self.arrived | ~self.exists).all(1)

    @property
    def time(self) -> Tensor:
        """Travel time of each robot, seconds."""
        return self.steps * (DT * SUBSTEPS)

    @property
    def counted(self) -> Tensor:
        """Whether the time and energy of a robot count, (E, R) bool.

        Those of robots that arrived do. If the first collision ends a world, only those of successful worlds do: in the
        others, slow robots were cut off, and the mean would be that of the fast ones.
        """
        if not self.end_on_collision:
            return self.arrived
        return self.arrived & self.success[:, None]

    def metrics(self, level: int | None = None) -> NavigationMetrics:
        """Return the metrics of the worlds of a row, or of all worlds."""
        if level is None:
            mine = torch.ones_like(self.success)
        else:
            mine = self.level == level
        exists = self.exists[mine]
        counted = self.counted[mine]
        collided = self.collided[mine]
        time = None
        energy = None
        if bool(counted.any()):
            time = _mean(self.time[mine][counted])
            energy = _mean(self.energy[mine][counted])
        success = _mean(self.success[mine])
        arrived = _mean(self.arrived[mine][exists])
        returned = _mean(self.returned[mine][exists])
        discounted = _mean(self.discounted[mine][exists])
        return NavigationMetrics(
            worlds=int(mine.sum()),
            success=success,
            arrived=arrived,
            collided=_mean(collided[exists]),
            collision_rate=_mean(collided.any(1)),
            time=time,
            energy=energy,
            returned=returned,
            discounted=discounted,
        )

    def scores(self) -> dict[str, float]:
        """Return metrics by name, and the success of each row.

        Time and energy are left out if no robot counts.
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

    A world that is over does not change any more, also in `env.state`.

    Args:
        env: The environment.
        policy: Navigates all robots.
        num_episodes: Number of the first environments whose worlds are played; None for all.
        record: Environments whose `trajectories` are kept.
    """
    number = env.num_envs if num_episodes is None else num_episodes
    clock = DecisionClock(env.device)
    action_key: NestedKey = "action" if env.flat else (GROUP, "action")
    reward_key: NestedKey = "reward" if env.flat else (GROUP, "reward")
    with evaluation(env, policy) as seen:
        recorder = TrajectoryRecorder(env, record)
        world = torch.arange(env.num_envs, device=env.device, dtype=torch.int64)
        over = world >= number
        _stop(env, over)
        start = env.state.motion[PLACE].permute(2, 1, 0)
        steps = torch.zeros_like(env.state.active, dtype=torch.int64)  # (R, N)
        discounted = torch.zeros_like(env.state.score)
        weight = 1.0

        def decide() -> Tensor:
            """Return actions for all worlds.

            The policy, which takes most of the time, only sees the worlds that are running.
            """
            if len(running) == env.num_envs:
                return policy(seen).get(action_key)
            some: Tensor = policy(seen[running]).get(action_key)
            everywhere = some.new_zeros(env.num_envs, *some.shape[1:])
            return everywhere.index_copy_(0, running, some)

        running = (~over).nonzero().squeeze(1)
        while len(running):
            for step in range(BETWEEN_READS):
                # Measuring waits for the device, so only one decision in each block is measured.
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

    def per_robot(values: Tensor) -> Tensor:
        """Return values (R, N) of the played worlds as (E, R) on the CPU."""
        return values.t()[:number].cpu()

    state = env.state
    exists = per_robot(state.exists)
    arrived = per_robot(state.arrived)
    collided = per_robot(state.collided)
    energy = per_robot(state.energy)
    returned = per_robot(state.score)
    level = state.level[:number].cpu()
    start = start[:number].cpu()
    goal = env.scene.goal.permute(2, 1, 0)[:number].cpu()
    return NavigationResults(
        level=level,
        exists=exists,
        arrived=arrived,
        collided=collided,
        energy=energy,
        steps=per_robot(steps),
        returned=returned,
        discounted=per_robot(discounted),
        end_on_collision=env.end_on_collision,
        start=start,
        goal=goal,
        trajectories=recorder.trajectories(),
        **clock.times(),
    )


def _stop(env: MarineNavEnv, over: Tensor) -> None:
    """Make all robots of worlds that are over inactive, so that nothing there changes."""
    active = env.state.active & ~over
    env.set_env_state(vars(env.state) | {"active": active})
