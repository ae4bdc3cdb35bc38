"""Whole episodes of marine navigation, and what is counted about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.specs import GROUP
from torchrl_gpu.envs.marine.types import DT, PLACE, SUBSTEPS
from torchrl_gpu.evaluation.marine.trajectories import Trajectories, TrajectoryRecorder
from torchrl_gpu.evaluation.results import DecisionClock, Results, evaluation
from torchrl_gpu.policies.policy import Policy

GAMMA = 0.99  # discount of an action, of the papers' "discounted reward"
BETWEEN_READS = 20  # actions between two looks at which worlds are over


@dataclass(frozen=True)
class NavigationMetrics:
    """Metrics of some worlds; None where there is nothing to take a mean of."""

    worlds: int
    success: float  # share of the worlds in which all robots arrived
    arrived: float  # share of the robots, as is `collided`
    collided: float
    collision_rate: float  # share of the worlds with a collision
    time: float | None  # mean of the robots that count (see `NavigationResults.counted`), seconds
    energy: float | None  # mean of those, units of the environment
    returned: float  # mean return of a robot, as it is and discounted
    discounted: float


SCORES = (
    *("success", "arrived", "collided", "collision_rate", "time", "energy", "return", "discounted_return"),
    "success_level_*",
)
"""Names in `NavigationResults.scores`, as patterns."""


@dataclass(frozen=True, kw_only=True)
class NavigationResults(Results):
    """Results of the R robots of E worlds: (E, R) unless said otherwise."""

    level: Tensor  # (E,) int64, row of the curriculum
    exists: Tensor  # bool, as are `arrived` and `collided`
    arrived: Tensor
    collided: Tensor
    steps: Tensor  # int64, actions that a robot made before it arrived, collided, or its world was over
    energy: Tensor  # spent in them
    returned: Tensor  # sums of rewards, as they are and discounted
    discounted: Tensor
    end_on_collision: bool  # whether the first collision ended a world
    start: Tensor | None = None  # (E, R, 2), metres, as is `goal`
    goal: Tensor | None = None
    trajectories: Trajectories | None = None  # of the worlds that were recorded

    @property
    def success(self) -> Tensor:
        """(E,) bool: all robots of the world arrived."""
        return (self.arrived | ~self.exists).all(1)

    @property
    def time(self) -> Tensor:
        """Seconds that each robot was under way."""
        return self.steps * (DT * SUBSTEPS)

    @property
    def counted(self) -> Tensor:
        """Robots whose time and energy count, (E, R) bool: all that arrived.

        Of successful worlds alone where the first collision ended a world: robots under way then never showed theirs.
        """
        return self.arrived & self.success[:, None] if self.end_on_collision else self.arrived

    def metrics(self, level: int | None = None) -> NavigationMetrics:
        mine = torch.ones_like(self.success) if level is None else self.level == level
        exists, counted = self.exists[mine], self.counted[mine]
        collided = self.collided[mine]
        return NavigationMetrics(
            worlds=int(mine.sum()),
            success=_mean(self.success[mine]),
            arrived=_mean(self.arrived[mine][exists]),
            collided=_mean(collided[exists]),
            collision_rate=_mean(collided.any(1)),
            time=_mean(self.time[mine][counted]) if counted.any() else None,
            energy=_mean(self.energy[mine][counted]) if counted.any() else None,
            returned=_mean(self.returned[mine][exists]),
            discounted=_mean(self.discounted[mine][exists]),
        )

    def scores(self) -> dict[str, float]:
        """Metrics by name, and the success of each row; without time and energy where none can be told."""
        values = vars(self.metrics())
        names = ("success", "arrived", "collided", "collision_rate", "time", "energy")
        named = {name: values[name] for name in names}
        named |= {"return": values["returned"], "discounted_return": values["discounted"]}
        levels = {f"success_level_{i}": self.metrics(i).success for i in self.level.unique().tolist()}
        return {name: value for name, value in named.items() if value is not None} | levels


def _mean(values: Tensor) -> float:
    return values.double().mean().item()


def evaluate(
    env: MarineNavEnv, policy: Policy, num_episodes: int | None = None, record: Sequence[int] = ()
) -> NavigationResults:
    """Plays the first episode of every world of the environment's seed, greedily.

    A world that is over stays as it ended, in `env.state` too, while others go on. Only the worlds of the first
    `num_episodes` environments are played, None for all, and `record` are those whose `trajectories` are kept.
    """
    number, clock = env.num_envs if num_episodes is None else num_episodes, DecisionClock(env.device)
    action_key, reward_key = ("action", "reward") if env.flat else ((GROUP, "action"), (GROUP, "reward"))
    with evaluation(env, policy) as seen:
        recorder = TrajectoryRecorder(env, record)
        over = torch.arange(env.num_envs, device=env.device, dtype=torch.int64) >= number
        _stop(env, over)
        start = env.state.motion[PLACE].permute(2, 1, 0)
        steps = torch.zeros_like(env.state.active, dtype=torch.int64)  # (R, N)
        discounted, weight = torch.zeros_like(env.state.score), 1.0

        def decide() -> Tensor:
            """Actions of all worlds; only those that go on are asked for, since that takes the time."""
            if len(running) == env.num_envs:
                return policy(seen).get(action_key)
            some: Tensor = policy(seen[running]).get(action_key)
            return some.new_zeros(env.num_envs, *some.shape[1:]).index_copy_(0, running, some)

        while len(running := (~over).nonzero().squeeze(1)):
            for step in range(BETWEEN_READS):
                action = decide() if step else clock.time(len(running), decide)
                steps += env.state.active
                stepped = env.step(seen.set(action_key, action))
                discounted += weight * stepped["next"].get(reward_key).reshape(env.num_envs, -1).t()
                weight *= GAMMA
                over |= stepped["next", "done"].squeeze(-1)
                recorder.record(over)
                _stop(env, over)
                seen = env.step_mdp(stepped)
    s = env.state
    per_robot = {name: getattr(s, name) for name in ("exists", "arrived", "collided", "energy")}
    per_robot |= {"steps": steps, "returned": s.score, "discounted": discounted}
    return NavigationResults(
        level=s.level[:number].cpu(),
        **{name: value.t()[:number].cpu() for name, value in per_robot.items()},
        end_on_collision=env.end_on_collision,
        start=start[:number].cpu(),
        goal=env.scene.goal.permute(2, 1, 0)[:number].cpu(),
        trajectories=recorder.trajectories(),
        **clock.times(),
    )


def _stop(env: MarineNavEnv, over: Tensor) -> None:
    """Nobody takes part in a world that is over, so that nothing there will change."""
    env._set_env_state(vars(env.state) | {"active": env.state.active & ~over})
