"""Environments on the pretended device.

They step, reset and roll out without a wait, and give what they give on the CPU.
"""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDictBase

from tests.envs.marine import settings as marine
from tests.envs.packing import settings as packing
from tests.pretend_cuda import waits
from torchrl_gpu import native
from torchrl_gpu.envs import MarineNavEnv, PackingEnv
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.packing.items import CutBoxes
from torchrl_gpu.evaluation.random_actions import RandomActions

STEPS = 8


@pytest.fixture(autouse=True)
def torch_on_the_cpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators on the CPU, where C++ rounds otherwise."""
    monkeypatch.setattr(native, "runs_on", lambda tensor: False)


COARSER: dict[str, dict[str, object]] = {
    "irregular": {"resolution": 10, "grid_step": 3},
    "cut anew": {"bin_size": (6.0, 6.0, 6.0), "resolution": 6, "items": CutBoxes(2, 4, pool=None)},
}


def packed(setting: str, device: str, **changes: object) -> PackingEnv:
    return packing.packing(setting, device=device, backend="eager", **COARSER.get(setting, {}), **changes)


def steps_of_packing(env: PackingEnv) -> list[TensorDictBase]:
    """The first legal action, at times one that does not exist."""
    current, seen = env.reset(), []
    for turn in range(STEPS):
        action = current["action_mask"].int().argmax(1)
        current["action"] = action - 1 if turn == STEPS - 2 else action
        step, current = env.step_and_maybe_reset(current)
        seen.append(step)
    return seen


def steps_of_robots(env: MarineNavEnv) -> list[TensorDictBase]:
    current, seen = env.reset(), []
    shape = (env.num_envs, env.num_robots, *(() if env.num_actions else (2,)))
    action = torch.full(shape, 7 if env.num_actions else 0.5, device=env.device)
    for turn in range(STEPS):
        if turn == STEPS // 2:
            env.set_level(2_500_000)
        step, current = env.step_and_maybe_reset(marine.acted(env, current, action))
        seen.append(step)
    return seen


def assert_alike(cuda: list[TensorDictBase], cpu: list[TensorDictBase]) -> None:
    for there, here in zip(cuda, cpu, strict=True):
        packing.assert_same(there.cpu(), here)
        assert all(value.is_cuda for value in there.values(True, True))


PACKED = [{"incremental": False, "visible_items": 2}, {"copy_observations": True}, {"orientations": 90.0}]
ROBOTS = [{"end_on_collision": True}, {"in_order": True}, {"dtype": "float64"}, {"copy_observations": True}]


@pytest.mark.parametrize(
    ("setting", "changes"),
    [*((setting, {}) for setting in packing.SETTINGS), *(("bpp10", changes) for changes in PACKED)],
    ids=str,
)
def test_packing_waits_for_nothing(setting: str, changes: dict) -> None:
    env = packed(setting, "cuda", **changes)
    with waits() as counted:
        seen = steps_of_packing(env)
    assert counted.total == 0, counted.report()
    assert_alike(seen, steps_of_packing(packed(setting, "cpu", **changes)))


@pytest.mark.parametrize(
    ("setting", "changes"),
    [*((setting, {}) for setting in marine.SETTINGS), *(("v2", changes) for changes in ROBOTS)],
    ids=str,
)
def test_robots_wait_for_nothing(setting: str, changes: dict) -> None:
    env = marine.marine(setting, device="cuda", max_steps=5, **changes)
    with waits() as counted:
        seen = steps_of_robots(env)
    assert counted.total == 0, counted.report()
    assert_alike(seen, steps_of_robots(marine.marine(setting, max_steps=5, **changes)))


ENVS = {
    "packing": lambda device: packed("irregular", device),
    "v2": lambda device: marine.marine("v2", device=device),
    "v3": lambda device: marine.marine("v3", device=device),
}


@pytest.fixture(params=ENVS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_rollouts_of_torchrl_wait_for_nothing(kind: str) -> None:
    env = ENVS[kind]("cuda")
    policy = RandomActions(env)
    env.rollout(2, policy)
    with waits() as counted:
        played = env.rollout(6, policy, break_when_any_done=False, auto_reset=True)
    assert counted.total == 0, counted.report()
    assert played.shape == (3, 6)
    assert played.device == env.device


def test_what_torchrl_does_to_reset_some_rows_waits_twice(kind: str) -> None:
    # `maybe_reset` does the same without: it is what the steps above call.
    env = ENVS[kind]("cuda")
    current = RandomActions(env)(env.reset())
    _, current = env.step_and_maybe_reset(current)
    current["_reset"] = (torch.arange(3, device=env.device) == 1)[:, None]
    with waits() as counted:
        again = env.reset(current)
    assert counted.total == 2, counted.report()
    assert all("through torchrl" in place or "through tensordict" in place for place in counted.by_place())
    assert again["episode_step"].flatten().tolist() == [1, 0, 1]


def test_a_state_goes_to_the_other_device_and_back(kind: str) -> None:
    there, here = ENVS[kind]("cuda"), ENVS[kind]("cpu")
    first = RandomActions(there)(there.reset())
    there.step_and_maybe_reset(first)
    here.load_state_dict(there.state_dict())
    back = ENVS[kind]("cuda")
    back.load_state_dict(here.state_dict())
    for name, value in there.state_dict().items():
        assert torch.equal(back.state_dict()[name].cpu(), value.cpu()), name
        assert torch.equal(here.state_dict()[name], value.cpu()), name


def test_others_like_it_are_on_its_device(kind: str) -> None:
    env: BatchedEnv = ENVS[kind]("cuda").like(2)
    assert env.reset().device == env.device == torch.device("cuda", 0)


def test_an_environment_moves_with_its_state() -> None:
    for make in (lambda: packed("bpp10", "cpu"), lambda: marine.marine("v2", device="cpu")):
        moved, stays = make(), make()
        play = steps_of_packing if isinstance(moved, PackingEnv) else steps_of_robots
        play(moved)
        play(stays)
        assert moved.to("cuda") is moved
        assert moved.device.type == "cuda"
        assert all(value.is_cuda for value in moved.env_state().values())
        assert_alike(play(moved), play(stays))
