"""The C++ form of an action of v2 against the torch form.

Every setting, any number of worlds, odd inputs.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.envs.marine.settings import SETTINGS, acted, marine, random_action
from tests.records import values_by_name
from torchrl_gpu import native
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.envs.marine.types import After
from torchrl_gpu.system import tracing

V2 = [name for name, changes in SETTINGS.items() if changes.get("version") != "v3"]

pytestmark = pytest.mark.skipif(bool(native.problem()), reason="no C++ compiler")


def both(env: MarineNavEnv, action: Tensor, monkeypatch: pytest.MonkeyPatch) -> tuple[After, After]:
    """An action (R, N) by the kernel and by torch."""
    there = env.state.active.to(env.dtype)
    compiled = env.state_after(action, env.scene, there)
    with monkeypatch.context() as patch:
        patch.setattr(tracing, "_recording", True)
        return compiled, env.state_after(action, env.scene, there)


def check(compiled: After, plain: After, within: float) -> None:
    for (name, got), wanted in zip(values_by_name(compiled).items(), plain, strict=True):
        if wanted is None:
            assert got is None
        elif wanted.dtype == torch.bool:
            assert torch.equal(got, wanted), name
        else:
            assert (got - wanted).abs().max() <= within, name


@pytest.mark.parametrize("setting", V2)
@pytest.mark.parametrize("num_envs", [1, 3, 17, 70])
def test_an_action_is_that_of_torch(setting: str, num_envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    env = marine(setting, num_envs, dtype="float64", max_steps=20)
    generator, seen = torch.Generator().manual_seed(0), env.reset()
    for _ in range(30):
        action = random_action(env, generator)
        check(*both(env, action.t().contiguous(), monkeypatch), within=1e-10)
        _, seen = env.step_and_maybe_reset(acted(env, seen, action))
    assert env.state.episode.min() > 1 or not env.state.active.all()


def test_float32_differs_by_what_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    env = marine("v2, most", 200)
    env.reset()
    compiled, plain = both(env, random_action(env, torch.Generator().manual_seed(0)).t().contiguous(), monkeypatch)
    assert compiled.motion.dtype == torch.float32
    # Metres, of up to 50.
    assert (compiled.motion[:2] - plain.motion[:2]).abs().max() < 1e-4


def test_robots_that_are_not_active_stay_and_see_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    env = marine("v2", 40, dtype="float64")
    env.reset()
    env.state.active[torch.arange(40) % 5, torch.arange(40)] = False
    compiled, plain = both(env, torch.full((5, 40), 8), monkeypatch)
    check(compiled, plain, within=1e-10)
    gone = ~env.state.active
    assert torch.equal(compiled.motion[:, gone], env.state.motion[:, gone])
    assert not compiled.observation.transpose(0, 1)[gone].any()


@pytest.mark.parametrize("action", [-1, 9, 2**40, -(2**63)])
def test_an_action_that_does_not_exist_does_nothing(action: int, monkeypatch: pytest.MonkeyPatch) -> None:
    env = marine("v2", 5, dtype="float64")
    env.reset()
    compiled, plain = both(env, torch.full((5, 5), action), monkeypatch)
    check(compiled, plain, within=1e-10)
    assert not compiled.energy.any()


def test_a_heading_of_many_turns_comes_back_into_one(monkeypatch: pytest.MonkeyPatch) -> None:
    env = marine("v2", 2, dtype="float64")
    env.reset()
    env.state.motion[2] = torch.tensor([1e4, -1e4], dtype=torch.float64)
    compiled, plain = both(env, torch.full((5, 2), 5), monkeypatch)
    check(compiled, plain, within=1e-9)
    assert (compiled.motion[2] >= 0).all()
    assert (compiled.motion[2] < 2 * math.pi).all()


@pytest.mark.parametrize(
    ("name", "shape"), [("motion", (8, 5, 9)), ("motion", (8, 4, 5)), ("scene", (46, 4)), ("active", (5, 1))]
)
def test_a_state_of_another_shape_reaches_no_memory(name: str, shape: tuple[int, ...]) -> None:
    env = marine("v2", 5)
    seen = env.reset()
    value = getattr(env.state, name)
    setattr(env.state, name, torch.zeros(shape, dtype=value.dtype))
    with pytest.raises(ValueError, match=r"^MarineNavEnv: (motion|scene|active|action) must "):
        env.step(acted(env, seen, torch.zeros(5, 5, dtype=torch.int64)))


def test_numbers_that_are_none_stay_inside_memory() -> None:
    env = marine("v2, most", 33)
    env.reset()
    env.state.motion[:, 1] = math.nan
    env.state.scene[:, 2] = math.inf
    action = torch.zeros(7, 33, dtype=torch.int64)
    after = env.state_after(action, env.scene, env.state.active.to(env.dtype))
    assert after.observation[5].isfinite().any()
