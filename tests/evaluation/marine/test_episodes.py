"""Whole episodes of marine navigation.

Compared with results worked out by hand, and with the environment step by step.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tests.envs.marine.settings import marine
from tests.training.crossing_worlds import AHEAD, CROWD, IDLE, always, homing, marine_env
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.envs.marine.types import HEADING, PLACE, SPEED
from torchrl_gpu.evaluation.marine.episodes import BETWEEN_READS, GAMMA, NavigationResults, evaluate
from torchrl_gpu.policies import IQN, AgentSpace, NavigationQuantiles, PolicyWrapper

PER_ROBOT = ("exists", "arrived", "collided", "steps", "energy", "returned", "discounted")


def results(**changes: Any) -> NavigationResults:
    """Three worlds of two rows, with two robots but for the last, which has one."""
    exists = torch.tensor([[True, True], [True, True], [True, False]])
    arrived = torch.tensor([[True, True], [True, False], [True, False]])
    collided = torch.tensor([[False, False], [False, True], [False, False]])
    steps = torch.tensor([[40, 60], [20, 10], [80, 0]])
    energy = torch.tensor([[10.0, 20.0], [4.0, 1.0], [30.0, 0.0]])
    returned = torch.tensor([[100.0, 90.0], [110.0, -60.0], [80.0, 0.0]])
    discounted = torch.tensor([[50.0, 40.0], [80.0, -50.0], [30.0, 0.0]])
    parts = {
        "level": torch.tensor([0, 0, 2]),
        "exists": exists,
        "arrived": arrived,
        "collided": collided,
        "steps": steps,
        "energy": energy,
        "returned": returned,
        "discounted": discounted,
        "end_on_collision": False,
    }
    return NavigationResults(**parts | changes)  # type: ignore[arg-type]


def test_scores_by_hand() -> None:
    scores = results().scores()
    expected = {"success": 2 / 3, "arrived": 4 / 5, "collided": 1 / 5, "collision_rate": 1 / 3}
    # Half a second for each action of those that arrived.
    expected["time"] = (20 + 30 + 10 + 40) / 4
    expected["energy"] = (10 + 20 + 4 + 30) / 4
    expected["return"] = (100 + 90 + 110 - 60 + 80) / 5
    expected["discounted_return"] = (50 + 40 + 80 - 50 + 30) / 5
    expected |= {"success_level_0": 1 / 2, "success_level_2": 1}
    assert scores == pytest.approx(expected)


def test_where_a_collision_ends_a_world_only_successful_worlds_have_a_time() -> None:
    scores = results(end_on_collision=True).scores()
    assert scores["time"] == pytest.approx((20 + 30 + 40) / 3)
    assert scores["energy"] == pytest.approx((10 + 20 + 30) / 3)
    assert scores["arrived"] == pytest.approx(4 / 5)


def test_rows_by_hand() -> None:
    row = results().metrics(0)
    assert (row.worlds, row.success, row.arrived, row.time) == (2, 0.5, 0.75, pytest.approx(20))


def test_nobody_arrived_and_nothing_is_told_of_it() -> None:
    none = torch.zeros(3, 2, dtype=torch.bool)
    scores = results(arrived=none).scores()
    assert not {"time", "energy"} & set(scores)
    assert (scores["success"], scores["arrived"]) == (0, 0)
    assert all(math.isfinite(value) for value in scores.values())


def straight(env: MarineNavEnv, world: int) -> tuple[int, float] | None:
    """Action with which a robot that accelerates and never turns arrives.

    And how near it is then, by a scalar loop.
    """
    x, y = env.state.motion[PLACE, 0, world].tolist()
    heading, speed = env.state.motion[HEADING, 0, world].item(), env.state.motion[SPEED, 0, world].item()
    goal = env.scene.goal[:, 0, world].tolist()
    for action in range(1, env.max_steps):
        for _ in range(10):
            x, y = x + 0.05 * speed * math.cos(heading), y + 0.05 * speed * math.sin(heading)
            speed = min(max(speed + 0.05 * (0.4 - 0.2 * speed), 0.0), 2.0)
        if math.dist((x, y), goal) <= 2:
            return action, math.dist((x, y), goal)
    return None


def test_straight_ahead_by_hand() -> None:
    env = marine_env(256, dtype="float64", min_distance=5.0)
    env.reset()
    start = (env.scene.goal - env.state.motion[PLACE]).norm(dim=0)[0]
    expected = [straight(env, i) for i in range(256)]
    played = evaluate(env, always(AHEAD))
    assert played.arrived.squeeze(1).tolist() == [each is not None for each in expected]
    assert 0 < int(played.arrived.sum()) < 256
    for i, each in enumerate(expected):
        actions = each[0] if each else env.max_steps
        # Full acceleration costs 1 for each action.
        assert played.steps[i] == played.energy[i] == actions
        if each:
            assert played.returned[i].item() == pytest.approx(start[i].item() - each[1] - actions + 100)
            assert played.time[i].item() == pytest.approx(actions / 2)


def test_who_stands_still_never_arrives() -> None:
    played = evaluate(marine_env(max_steps=30), always(IDLE))
    assert not played.arrived.any()
    assert not played.collided.any()
    # 30 is no multiple of the actions between two checks.
    assert (played.steps == 30).all()
    assert played.scores()["success"] == 0


class Ends:
    """Last observation of the first episode in every world.

    They are played step by step.
    """

    def __init__(self, env: MarineNavEnv, policy: Any) -> None:
        env.set_seed(env.seed)
        seen, self.ends = env.reset(), {}
        steps = torch.zeros_like(env.state.score)
        discounted = torch.zeros_like(env.state.score)
        weight = 1.0
        while len(self.ends) < env.num_envs:
            steps += env.state.active
            stepped = env.step(policy(seen))
            discounted += weight * self.rewards(env, stepped)
            weight *= GAMMA
            for i in range(env.num_envs):
                if stepped["next", "done"][i] and i not in self.ends:
                    s = env.state
                    parts = s.exists, s.arrived, s.collided, steps, s.energy, s.score, discounted
                    self.ends[i] = [part[:, i].clone() for part in parts]
            seen = env.step_mdp(stepped)

    @staticmethod
    def rewards(env: MarineNavEnv, stepped: TensorDictBase) -> Tensor:
        return stepped["next", "reward"].t() if env.flat else stepped["next", "robots", "reward"].squeeze(-1).t()


@pytest.mark.parametrize(
    ("setting", "changes"),
    [
        ("v2", {**CROWD, "end_on_collision": True}),
        ("v3", {"robots": 4}),
        ("v3, discrete", {"robots": 3, "end_on_collision": True}),
        ("v2, one robot", {"obstacles": 3}),
    ],
)
def test_every_world_counts_as_it_ended(setting: str, changes: dict[str, Any]) -> None:
    env = marine(setting, 10, max_steps=75, dtype="float64", in_order=True, **changes)
    played, expected = evaluate(env, homing(env)), Ends(env, homing(env)).ends
    lasted = played.steps.amax(1)
    # Some worlds were over long before others.
    assert lasted.min() + BETWEEN_READS < lasted.max()
    for i, parts in expected.items():
        for name, wanted in zip(PER_ROBOT, parts, strict=True):
            assert torch.equal(getattr(played, name)[i].double(), wanted.double()), (name, i)
    if changes.get("end_on_collision"):
        hit = played.collided.any(1)
        # Robots that were still on their way.
        assert (~played.arrived & ~played.collided & played.exists)[hit].any()


def test_worlds_stay_as_they_ended_in_the_environment_too() -> None:
    env = marine_env(10, **CROWD, end_on_collision=True)
    played = evaluate(env, homing(env))
    assert not env.state.active.any()
    assert torch.equal(env.state.energy.t(), played.energy)
    assert torch.equal(env.state.collided.t(), played.collided)


class DrawnTaus(NavigationQuantiles):
    """Decides by τ that are drawn."""

    def mean(self, *inputs: Tensor) -> Tensor:
        *observations, taus = inputs
        return super().mean(*observations, torch.rand_like(taus))


def iqn(env: MarineNavEnv) -> PolicyWrapper:
    torch.manual_seed(1)
    return PolicyWrapper(IQN(AgentSpace.of(env), network=DrawnTaus, acting_taus=4))


def same(first: NavigationResults, second: NavigationResults) -> bool:
    tensors = [f.name for f in fields(NavigationResults) if isinstance(getattr(first, f.name), Tensor)]
    return len(tensors) > 7 and all(torch.equal(getattr(first, name), getattr(second, name)) for name in tensors)


def test_twice_is_the_same_and_torchs_generator_goes_on_as_it_was() -> None:
    env = marine_env(6, **CROWD, max_steps=30)
    policy = iqn(env)
    torch.manual_seed(5)
    first, drawn = evaluate(env, policy), torch.rand(3)
    env.rollout(7, break_when_any_done=False)
    assert same(first, evaluate(env, policy))
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), drawn)
    assert not same(first, evaluate(env.like(6, seed=5), policy))


def test_trajectories_lead_from_the_start_to_where_a_world_was_over() -> None:
    env = marine_env(12, **CROWD, end_on_collision=True)
    env.reset()
    start = env.state.motion[PLACE].permute(2, 1, 0).double()
    played = evaluate(env, homing(env), record=[2, 0, 7])
    trajectories = played.trajectories
    assert trajectories is not None
    assert trajectories.index == (2, 0, 7)
    end = env.state.motion[PLACE].permute(2, 1, 0).double()
    for which, i in enumerate(trajectories.index):
        last = int(trajectories.length[which]) - 1
        assert last == played.steps[i].max()
        assert torch.equal(trajectories.place[0, which], start[i])
        assert torch.equal(trajectories.place[last:, which], end[i].expand_as(trajectories.place[last:, which]))
        assert torch.equal(trajectories.collided[last, which], played.collided[i])
        assert torch.equal(trajectories.arrived[last, which], played.arrived[i])
        assert not torch.equal(trajectories.place[last - 1, which], end[i])
        assert (trajectories.world(which, last).place == trajectories.worlds[which].place).all()


def test_films_have_few_frames_and_end_with_the_end() -> None:
    played = evaluate(marine_env(2, max_steps=200, seed=1), always(IDLE), record=[1])
    assert played.trajectories is not None
    film = played.trajectories.film(0, width=32)
    # Moments 0, 2, …, 198 and 200.
    assert film.shape == (101, 32, 32, 3)
    assert torch.equal(film[-1], played.trajectories.picture(0, width=32))


def test_nothing_is_recorded_unless_asked_for() -> None:
    assert evaluate(marine_env(2, max_steps=3), always(IDLE)).trajectories is None
