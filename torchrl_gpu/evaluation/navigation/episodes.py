"""Whole episodes of marine navigation, and what is counted about them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.device import now
from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.specs import GROUP
from torchrl_gpu.envs.marine.types import DT, SUBSTEPS
from torchrl_gpu.evaluation.navigation.trajectories import Trails, Watch
from torchrl_gpu.evaluation.player import eval_mode
from torchrl_gpu.policies.generators import seeded
from torchrl_gpu.policies.policy import Policy

GAMMA = 0.99  # discount of an action, of the papers' "discounted reward"
BETWEEN_READS = 20  # actions between two looks at which worlds are over


@dataclass(frozen=True)
class Figures:
    """What some worlds came to; None where there is nothing to take a mean of.

    Attributes:
        worlds: How many.
        success: Share of the worlds in which all robots arrived.
        arrived, collided: Shares of the robots.
        collision_rate: Share of the worlds with a collision.
        time: Mean of the robots that count (see `Crossings.counted`), seconds.
        energy: Mean of those, units of the environment.
        returned, discounted: Mean return of a robot, as it is and discounted.
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

    @property
    def error(self) -> float:
        """Standard error of the share `success`."""
        return (self.success * (1 - self.success) / self.worlds) ** 0.5


@dataclass(frozen=True)
class Crossings:
    """How E worlds ended for their R robots: on the CPU, (E, R) unless said otherwise.

    Attributes:
        level: (E,) int64, row of the curriculum.
        exists, arrived, collided: bool.
        steps: int64, actions that a robot made before it arrived, collided, or its world was over.
        energy: Spent in them.
        returned, discounted: Sums of rewards, as they are and discounted.
        end_on_collision: Whether the first collision ended a world.
        decision_ms: Of one decision for one world's robots, the policy alone, where all worlds are decided for at once.
        seconds: From the first reset to the last world that was over.
        trails: Where the robots of the worlds that were watched have been.
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
    decision_ms: float = 0.0
    seconds: float = 0.0
    trails: Trails | None = None

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
        """Robots whose time and energy count, bool: all that arrived; of successful worlds alone where the first
        collision ended a world, since robots that were on their way then never got to show theirs."""
        return self.arrived & self.success[:, None] if self.end_on_collision else self.arrived

    def figures(self, level: int | None = None) -> Figures:
        """Of the worlds of one row, or of all."""
        mine = torch.ones_like(self.success) if level is None else self.level == level
        exists, counted = self.exists[mine], self.counted[mine]
        collided = self.collided[mine]
        return Figures(
            worlds=int(mine.sum()),
            success=_share(self.success[mine]),
            arrived=_share(self.arrived[mine][exists]),
            collided=_share(collided[exists]),
            collision_rate=_share(collided.any(1)),
            time=_mean(self.time[mine][counted]),
            energy=_mean(self.energy[mine][counted]),
            returned=self.returned[mine][exists].double().mean().item(),
            discounted=self.discounted[mine][exists].double().mean().item(),
        )

    def scores(self) -> dict[str, float]:
        """Figures by name, and the success of each row; without time and energy where none can be told."""
        all_worlds = self.figures()
        named: dict[str, float | None] = {
            "success": all_worlds.success,
            "arrived": all_worlds.arrived,
            "collided": all_worlds.collided,
            "collision_rate": all_worlds.collision_rate,
            "time": all_worlds.time,
            "energy": all_worlds.energy,
            "return": all_worlds.returned,
            "discounted_return": all_worlds.discounted,
        }
        levels = {f"success_level_{i}": self.figures(i).success for i in self.level.unique().tolist()}
        return {name: value for name, value in named.items() if value is not None} | levels


def _share(flags: Tensor) -> float:
    return flags.double().mean().item()


def _mean(values: Tensor) -> float | None:
    return values.double().mean().item() if len(values) else None


@torch.no_grad()
def cross(env: MarineNavEnv, policy: Policy, watch: Sequence[int] = ()) -> Crossings:
    """Plays the first episode of every world of the environment's seed, greedily.

    A world that is over stays as it ended, in `env.state` too, while others go on. What a policy draws comes from
    torch's generators, seeded for these episodes and then put back: the same crossings every time.

    Args:
        env: Begins anew; each environment plays a world of the row that it was assigned.
        policy: Writes the action of every robot, of any number of worlds. A module acts in eval mode.
        watch: Environments whose `trails` are kept.
    """
    begin, device, decisions = time.perf_counter(), env.device, []
    seeding = seeded(env.seed + env.first_env, device)
    with seeding, eval_mode(policy), set_exploration_type(ExplorationType.DETERMINISTIC):
        env.set_seed(env.seed)
        seen, run = env.reset(), _Run(env, watch)
        running = torch.arange(env.num_envs, device=device)
        while len(running):
            start = now(device)
            action = _decide(env, policy, seen, running)
            decisions.append((now(device) - start) / len(running))
            for _ in range(BETWEEN_READS - 1):
                seen = run.step(seen, action)
                action = _decide(env, policy, seen, running)
            seen = run.step(seen, action)
            running = (~run.over).nonzero().squeeze(1)
    decision_ms = 1e3 * sorted(decisions)[len(decisions) // 2]
    return run.crossings(decision_ms=decision_ms, seconds=now(device) - begin)


class _Run:
    """One episode in every world, and what its state does not count."""

    def __init__(self, env: MarineNavEnv, watch: Sequence[int]) -> None:
        state = env.state
        self.env, self.watch = env, Watch(env, watch)
        self.over = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        self._steps = torch.zeros_like(state.active, dtype=torch.int64)  # (R, N)
        self._discounted, self._weight = torch.zeros_like(state.score), 1.0

    def step(self, seen: TensorDictBase, action: Tensor) -> TensorDictBase:
        """One action in every world that goes on; what is seen then."""
        self._steps += self.env.state.active
        stepped = self.env.step(seen.set(_key(self.env, "action"), action))
        reward = stepped["next"].get(_key(self.env, "reward"))
        self._discounted += self._weight * reward.reshape(self.over.shape[0], -1).t()
        self._weight *= GAMMA
        self.over |= stepped["next", "done"].squeeze(-1)
        self.watch.look(self.over)
        after = self.env.state
        # Nobody takes part in a world that is over, so nothing there will change.
        self.env._set_env_state(vars(after) | {"active": after.active & ~self.over})
        return self.env.step_mdp(stepped)

    def crossings(self, **times: Any) -> Crossings:
        """What it came to."""
        s = self.env.state
        return Crossings(
            level=s.level.cpu(),
            **{name: getattr(s, name).t().cpu() for name in ("exists", "arrived", "collided", "energy")},
            steps=self._steps.t().cpu(),
            returned=s.score.t().cpu(),
            discounted=self._discounted.t().cpu(),
            end_on_collision=self.env.end_on_collision,
            trails=self.watch.trails(),
            **times,
        )


def _decide(env: MarineNavEnv, policy: Policy, seen: TensorDictBase, running: Tensor) -> Tensor:
    """Actions of all worlds; only those that go on, of numbers `running`, are asked for, since that takes the time."""
    key = _key(env, "action")
    if len(running) == env.num_envs:
        return policy(seen).get(key)
    some: Tensor = policy(seen[running]).get(key)
    return some.new_zeros(env.num_envs, *some.shape[1:]).index_copy_(0, running, some)


def _key(env: MarineNavEnv, name: str) -> NestedKey:
    return name if env.flat else (GROUP, name)
