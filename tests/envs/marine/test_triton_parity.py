"""A step and a restart in Triton against torch's operators.

Triton interprets them, and every access is inside its tensor.

They run in the process that `test_triton.py` starts, and all of them in `make kernels`.
"""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("checks interpreted kernels, in the process of test_triton.py", allow_module_level=True)

import triton
import triton.language as tl

from tests.envs.marine.settings import SETTINGS, acted, marine, random_action
from tests.envs.packing.kernels.access_checker import AccessChecker
from torchrl_gpu import native
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.envs.counter_rng import draw_bits as drawn
from torchrl_gpu.envs.marine.triton import numbers, self_test, sight
from torchrl_gpu.envs.marine.triton import step as step_module

# The interpreter's blocks are NumPy's, which warns where 32 bits are not enough, and of the root of a negative number.
pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]
CHANGES = [{"end_on_collision": True}, {"in_order": True}, {"seed": 2**40 + 7}, {"upstream_compat": ["late_limit"]}]


@pytest.fixture(autouse=True)
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch form on the CPU, where C++ would step."""
    monkeypatch.setattr(native, "runs_on", lambda tensor: False)


@pytest.mark.parametrize("num_envs", [1, 17])
@pytest.mark.parametrize("setting", SETTINGS)
def test_steps_and_restarts_are_those_of_torch(setting: str, num_envs: int) -> None:
    env = marine(setting, num_envs, dtype="float64", max_steps=4)
    assert self_test.difference(env, 6, within=1e-9) == ""


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("setting", ["v2", "v3"])
def test_options_act_as_in_torch(setting: str, changes: dict) -> None:
    env = marine(setting, 4, dtype="float64", **{"max_steps": 3} | changes)
    assert self_test.difference(env, 5, within=1e-9) == ""


@pytest.mark.parametrize(("robots", "cores", "obstacles"), [(1, 0, 0), (2, 1, 1), (9, 0, 12), (17, 2, 3)])
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_any_number_of_robots_cores_and_obstacles(version: str, robots: int, cores: int, obstacles: int) -> None:
    sizes = {"robots": robots, "cores": cores, "obstacles": obstacles, "min_distance": 5.0}
    env = marine("v2", 2, dtype="float64", version=version, upstream_compat=["fewer_objects"], **sizes)
    assert self_test.difference(env, 2, within=1e-9) == ""


@pytest.mark.parametrize("setting", SETTINGS)
def test_float32_differs_by_what_is_rounded(setting: str) -> None:
    assert self_test.difference(marine(setting, 8, max_steps=4), 5, within=1e-3) == ""


@pytest.mark.parametrize("setting", ["v2", "v3, in currents"])
def test_robots_that_are_done_stay_and_see_nothing(setting: str) -> None:
    env = marine(setting, 12, dtype="float64")
    seen = env.reset()
    robots = env.num_robots
    env.state.active[torch.arange(12) % robots, torch.arange(12)] = False
    gone, before = ~env.state.active, env.state.motion
    made = env.step_fused(acted(env, seen, random_action(env, torch.Generator().manual_seed(0))))
    assert torch.equal(env.state.motion[:, gone], before[:, gone])
    assert not made["robots", "observation"].transpose(0, 1)[gone].any()
    assert not made["robots", "reward"].transpose(0, 1)[gone].any()
    assert self_test.difference(env, 1, within=1e-9) == ""


@pytest.mark.parametrize("action", [-1, 9, 25, 2**40, -(2**63)])
@pytest.mark.parametrize("setting", ["v2", "v3, discrete"])
def test_an_action_that_does_not_exist_does_nothing(setting: str, action: int, monkeypatch: pytest.MonkeyPatch) -> None:
    env = marine(setting, 2, dtype="float64")
    known = 0 <= action < env.num_actions
    monkeypatch.setattr(self_test, "_random_action", lambda env, generator: torch.full((2, 5), action))
    assert self_test.difference(env, 1, within=1e-9) == ""
    assert known or not env.state.energy.any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -7.0])
def test_a_thrust_that_is_no_command_is_clipped(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    env = marine("v3", 2, dtype="float64")
    given = torch.full((2, 5, 2), value, dtype=torch.float64)
    monkeypatch.setattr(self_test, "_random_action", lambda env, generator: given)
    assert self_test.difference(env, 1, within=1e-9) == ""


@pytest.mark.parametrize("setting", ["v2, most", "v3, discrete", "v3, in currents"])
def test_no_access_is_outside_its_tensor_and_none_races(setting: str) -> None:
    env = marine(setting, 9, max_steps=2)
    seen = env.reset()
    env.is_fused = True
    with AccessChecker() as checker:
        for turn in range(2):
            generator = torch.Generator().manual_seed(turn)
            _, seen = env.step_and_maybe_reset(acted(env, seen, random_action(env, generator)))
    assert not checker.faults, checker.describe()
    assert {launch.kernel for launch in checker.launches} == {"marine_step_kernel", "marine_restart_kernel"}
    assert env.state.episode.min() > 1


def test_numbers_that_are_none_stay_inside_memory() -> None:
    env = marine("v2, most", 5)
    seen = env.reset()
    env.state.motion[:, 1] = math.nan
    env.state.scene[:, 2] = math.inf
    with AccessChecker() as checker:
        made = env.step_fused(acted(env, seen, torch.zeros(5, 7, dtype=torch.int64)))
    assert not checker.faults, checker.describe()
    assert made["robots", "observation"][4].isfinite().any()


def test_it_is_tried_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "SETTINGS", {"v2": self_test.SETTINGS["v2"]})
    assert self_test.run("cpu") == ""
    right = MarineNavEnv.step_fused

    def wrong(env: MarineNavEnv, given: torch.Tensor) -> object:
        made = right(env, given)
        env.state.score[1, 2] += 0.5
        return made

    monkeypatch.setattr(MarineNavEnv, "step_fused", wrong)
    assert self_test.run("cpu") == "v2: step 0: score differs from torch's by 0.5"


@triton.jit
def _turns_kernel(x, y, cos, sin, angle, T: tl.constexpr):
    lane = tl.arange(0, T)
    first, second = tl.load(x + lane), tl.load(y + lane)
    of_cos, of_sin = numbers.cos_sin(first)
    tl.store(cos + lane, of_cos)
    tl.store(sin + lane, of_sin)
    tl.store(angle + lane, numbers.angle_of(first, second))


@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 3e-15), (torch.float32, 5e-7)])
def test_sines_and_angles_of_turns(dtype: torch.dtype, within: float) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn_at = torch.rand(4090, generator=generator, dtype=torch.float64) * 60 - 30
    special = torch.tensor([0.0, math.pi / 4, -math.pi / 2, math.pi, 2 * math.pi, 1e-30], dtype=torch.float64)
    x = torch.cat((drawn_at, special)).to(dtype)
    y = x.roll(5)
    cos = torch.empty_like(x)
    sin = torch.empty_like(x)
    angle = torch.empty_like(x)
    _turns_kernel[(1,)](x, y, cos, sin, angle, T=4096)
    assert (cos - x.double().cos()).abs().max() < within
    assert (sin - x.double().sin()).abs().max() < within
    assert (angle - torch.atan2(y.double(), x.double())).abs().max() < 2 * within


@triton.jit
def _bits_kernel(key, counter, out, T: tl.constexpr):
    lane = tl.arange(0, T)
    drawn_bits = numbers.draw_bits(tl.load(key + lane).to(tl.uint32), tl.load(counter + lane).to(tl.uint32))
    tl.store(out + lane, drawn_bits.to(tl.int64))


def test_random_bits_are_those_of_the_counter() -> None:
    rng = np.random.default_rng(0)
    key, counter = torch.from_numpy(rng.integers(-(2**62), 2**62, (2, 256)))
    out = torch.empty_like(key)
    _bits_kernel[(1,)](key, counter, out, T=256)
    assert torch.equal(out, drawn(key, counter))


def test_a_program_has_its_lanes_whatever_the_number_of_robots() -> None:
    for robots in (1, 3, 5, 64, 256):
        block = step_module.block_of(robots)
        assert block.robots >= robots
        assert block.robots * block.worlds == max(step_module.LANES, block.robots)
    assert sight.NEAREST == 5
