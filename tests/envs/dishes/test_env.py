"""Shifts as an environment: specs, clips, seeds, states and laws.

Nothing is read back.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.envs import DishwashingEnv
from torchrl_gpu.envs.dishes.economics import Economics
from torchrl_gpu.envs.viewable import Viewable, viewable

SMALL: dict[str, Any] = {"device": "cpu", "seed": 3, "max_steps": 5, "frame_size": (32, 24), "clip_length": 3}


def shifts(num_envs: int = 4, **changes: object) -> DishwashingEnv:
    return DishwashingEnv(num_envs, **SMALL | changes)


def played(
    env: DishwashingEnv, steps: int, action: Tensor | None = None
) -> tuple[list[TensorDictBase], TensorDictBase]:
    current, seen = env.reset(), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        current["action"] = torch.rand(env.num_envs, 2, generator=generator) if action is None else action
        step, current = env.step_and_maybe_reset(current)
        seen.append(step.clone())
    return seen, current


def test_a_clip_is_what_was_seen_last() -> None:
    seen, _ = played(shifts(observe_as="video"), 5)
    first = seen[0]["clip"]
    # Before there are three pictures, the first is repeated.
    assert torch.equal(first[:, 0], first[:, 1])
    assert torch.equal(first[:, 0], first[:, 2])
    for step in seen:
        assert torch.equal(step["next", "clip"][:, :-1], step["clip"][:, 1:])
        assert (step["next", "clip"][:, -1] != step["clip"][:, -1]).flatten(1).any(1).all()


def test_a_clip_never_crosses_the_end_of_a_shift() -> None:
    seen, shown = played(shifts(observe_as="video"), 5)
    assert seen[-1]["next", "truncated"].all()
    clip = shown["clip"]
    assert torch.equal(clip[:, 0], clip[:, 2])
    assert not torch.equal(clip[:, 0], seen[-1]["next", "clip"][:, -1])


def test_dishes_that_were_washed_are_clean_or_broken() -> None:
    env = shifts(stationary=True)
    seen, _ = played(env, 5, torch.tensor([[1.0, 0.0]]).expand(4, 2))
    total = torch.stack([step["next", "reward"] for step in seen]).sum(0)
    torch.testing.assert_close(seen[-1]["next", "profit"], total)
    clean, broken = seen[-1]["next", "clean"], seen[-1]["next", "broken"]
    assert broken.sum() > 0
    torch.testing.assert_close(clean + broken, torch.full((4, 1), 5 * env.economics.capacity))


def test_the_known_optimum_earns_what_is_said() -> None:
    env = DishwashingEnv(2048, stationary=True, device="cpu", seed=0, max_steps=50)
    best = env.optimum
    seen, _ = played(env, 50, torch.tensor([best.speed, best.care]).expand(2048, 2))
    rewards = torch.stack([step["next", "reward"] for step in seen])
    error = rewards.std().item() / rewards.numel() ** 0.5
    assert rewards.mean().item() == pytest.approx(best.reward, abs=5 * error)


def test_actions_beyond_the_bounds_are_the_bounds() -> None:
    one, other = shifts(), shifts()
    first, _ = played(one, 1, torch.tensor([[7.0, -3.0]]).expand(4, 2))
    second, _ = played(other, 1, torch.tensor([[1.0, 0.0]]).expand(4, 2))
    assert torch.equal(first[0]["next", "observation"], second[0]["next", "observation"])


def test_a_state_that_cannot_be_is_refused() -> None:
    env = shifts()
    env.reset()
    for name, value, message in (("fatigue", 2.0, "from 0 to 1"), ("stack", float("nan"), "from 0 to 10")):
        state = env.state_dict()
        state[name] = torch.full_like(state[name], value)
        with pytest.raises(ValueError, match=f"{name} must be {message}"):
            env.load_state_dict(state)


@pytest.mark.parametrize(
    "prices",
    [
        {"demand_swing": 30.0},
        {"demand_swing": 1e6, "demand_memory": 0.999},
        {"demand_swing": 50.0, "demand_memory": 1.0},
        {"demand_swing": 50.0, "demand_memory": 0.0},
        {"capacity": 1.0, "fragility": 0.125},
        {"capacity": 1e6, "stack_limit": 1e-3},
        {"fatigue_rate": 1.0, "wear_per_dish": 1.0},
    ],
)
def test_its_own_states_are_never_refused(prices: dict[str, float]) -> None:
    env = shifts(num_envs=32, economics=Economics(**prices), max_steps=9)
    current, torn = env.reset(), torch.tensor([1.0, 0.0]).expand(32, 2)
    # Beyond the end, too.
    for step in range(14):
        current = env.step(current.set("action", torn if step % 3 else 1 - torn))["next"]
        env.load_state_dict(env.state_dict())


def test_more_dishes_may_break_than_were_washed() -> None:
    env = shifts(num_envs=2)
    env.reset()
    env.load_state_dict(env.state_dict() | {"clean": torch.tensor([-3.0, 2.0])})
    assert env.entries["clean"].tolist() == [-3.0, 2.0]


def test_it_can_be_watched() -> None:
    env = shifts(observe_as="video")
    env.reset()
    watched = viewable(env)
    assert isinstance(watched, Viewable)
    pictures = torch.as_tensor(watched.pictures([1, 3], 24, 32))
    assert torch.equal(pictures.permute(0, 3, 1, 2), env.entries["clip"][[1, 3], -1])
    assert {"step", "episode", "return", "waiting", "clean", "broken"} <= set(watched.metrics())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observe_as": "sound"}, "observe_as must be one of state, video"),
        ({"clip_length": 0}, "clip_length must be"),
        ({"frame_size": (64,)}, "frame_size must be two numbers of pixels"),
        ({"frame_size": (8, 64)}, "frame_size must be"),
    ],
)
def test_arguments_that_cannot_be(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^DishwashingEnv: {message}"):
        shifts(**changes)
