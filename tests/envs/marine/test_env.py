"""The environment by its contract: keys, levels, resets, seeds, state."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torchrl.envs.utils import check_marl_grouping

from tests.envs.marine.settings import acted, marine, play, random_action
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.envs.marine.types import CRAFTS, PLACE, QUIRKS

# -- keys and specs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("setting", ["v2", "v3", "v3, discrete"])
def test_keys_shapes_and_types_are_those_documented(setting: str, dtype: str) -> None:
    env = marine(setting, num_envs=4, dtype=dtype)
    number = getattr(torch, dtype)
    n = 4
    r = 5
    features, slots = (39, 10) if env.version == "v2" else (32, 5)
    flag = (n, r, 1), torch.bool
    ended = ("done", "terminated", "truncated")
    robots = dict.fromkeys(("active", "arrived", "collided", *ended), flag)
    robots |= dict.fromkeys(("clearance", "energy"), ((n, r, 1), number))
    robots["observation"] = (n, r, features), number
    robots["object_mask"] = (n, r, slots), torch.bool
    if env.num_actions:
        robots["action_mask"] = ((n, r, env.num_actions), torch.bool)
    root = dict.fromkeys(("success", *ended), ((n, 1), torch.bool))
    root |= dict.fromkeys(("episode_step", "level"), ((n, 1), torch.int64))
    first = env.reset()
    step = env.step(acted(env, first.clone(), random_action(env, torch.Generator())))["next"]
    for seen, more in ((first, {}), (step, {"reward": ((n, r, 1), number)})):
        assert shapes(seen["robots"]) == robots | more
        assert shapes(seen.exclude("robots")) == root
    assert env.num_actions == {"v2": 9, "v3": 0, "v3, discrete": 25}[setting]
    assert env.group_map == {"robots": [f"robot_{i}" for i in range(5)]}
    check_marl_grouping(env.group_map, env.group_map["robots"])
    assert env.action_spec["robots", "action"].shape == ((n, r) if env.num_actions else (n, r, 2))


def shapes(seen: Any) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {key: (tuple(value.shape), value.dtype) for key, value in seen.items()}


def test_constructor_arguments_can_be_read_back() -> None:
    arguments: dict[str, object] = {
        "num_envs": 2,
        "version": "v3",
        "device": torch.device("cpu"),
        "dtype": torch.float64,
    }
    arguments |= {"robots": 3, "cores": 2, "obstacles": 1, "min_distance": 25.0, "curriculum": None}
    arguments |= {"max_steps": 50, "actions": "discrete", "upstream_compat": ("lagged_velocity",)}
    arguments |= {"end_on_collision": True, "sensor_noise": False, "pool": 7, "in_order": True, "flat": False}
    arguments |= {"seed": 5, "first_env": 3, "copy_observations": True}
    assert set(arguments) == set(inspect.signature(MarineNavEnv.__init__).parameters) - {"self"}
    env = MarineNavEnv(**arguments)
    assert {name: getattr(env, name) for name in arguments} == arguments
    other = env.like(5, seed=6)
    assert {name: getattr(other, name) for name in arguments} == arguments | {"num_envs": 5, "seed": 6}
    assert marine("v2, curriculum").like(2).levels == marine("v2, curriculum").levels


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"actions": "continuous"}, "actions must be one of auto, discrete; got 'continuous'"),
        ({"upstream_compat": ["no_yaw_drag"]}, "upstream_compat must be one of lagged_velocity, .*'no_yaw_drag'"),
        ({"flat": True}, "flat.* 5$"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^MarineNavEnv: .*{message}"):
        marine(**arguments)


# -- a step -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["v2", "v3, discrete"])
def test_masks_leave_only_the_idle_action_to_who_takes_no_part(setting: str) -> None:
    env = marine(setting, num_envs=8)
    idle = CRAFTS[env.version].idle
    seen = [step["next", "robots"] for step in play(env, 40)[0]]
    for robots in seen:
        active, mask = robots["active"], robots["action_mask"]
        assert (mask.all(-1, keepdim=True) | ~active).all()
        assert (mask[~active[..., 0]].sum(-1) == 1).all()
        assert mask[..., idle].all()
    assert any((~robots["active"]).any() for robots in seen)


@pytest.mark.parametrize("quirk", QUIRKS)
def test_every_quirk_changes_something_and_can_be_had_alone(quirk: str) -> None:
    changes: dict[str, object] = {
        "touching_cores": {"robots": 2, "cores": 20, "obstacles": 0, "pool": 100},
        "fewer_objects": {"robots": 2, "cores": 54, "obstacles": 0, "min_distance": 10.0, "pool": 8, "num_envs": 8},
    }.get(quirk, {"max_steps": 5})
    runs = []
    for compat in ((), (quirk,)):
        env = marine(**{"num_envs": 100, "in_order": True, "upstream_compat": compat} | changes)
        runs.append(play(env, 6, start=env.reset())[0])
    are_same = [same(one, other) for one, other in zip(*runs, strict=True)]
    assert not all(are_same)


def same(one: TensorDictBase, other: TensorDictBase) -> bool:
    return all(torch.equal(one[key], other[key]) for key in one.keys(True, True))


# -- levels -----------------------------------------------------------------------------------------------------------


def test_a_level_decides_the_episodes_that_begin() -> None:
    env = marine("v2, curriculum", num_envs=6, max_steps=4)
    sizes = {0: 3, 1: 5, 2: 7}
    assert (env.num_robots, env.sizes) == (7, (7, 8, 10))
    current = env.reset()
    assert current["level"].flatten().tolist() == [0] * 6
    env.set_level(1_000_000)
    for _ in range(4):
        assert (current["robots", "active"].sum(1) <= sizes[0]).all()
        current = env.step_and_maybe_reset(acted(env, current, torch.full((6, 7), 4)))[1]
    assert current["level"].flatten().tolist() == [1] * 6
    assert (current["robots", "active"].sum(1) == sizes[1]).all()
    env.set_level(2_999_999)
    assert (env.reset()["robots", "active"].sum(1) == sizes[2]).all()


def test_every_environment_may_have_a_level_of_its_own_and_levels_begin_at_their_steps() -> None:
    env = marine("v2, curriculum", num_envs=6)
    at = {0: 0, 999_999: 0, 1_000_000: 1, 4_999_999: 4, 5_000_000: 5, 10**9: 5}
    assert {step: env.level_at(step) for step in at} == at
    assert marine("v2").level_at(10**9) == 0
    env.assign_levels([0, 1, 2, 3, 4, 5])
    first = env.reset()
    assert first["level"].flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert first["robots", "active"].sum(1).flatten().tolist() == [3, 5, 7, 7, 7, 7]
    assert (env.scene.circulation != 0).sum(0).flatten().tolist() == [4, 6, 8, 8, 8, 8]
    with pytest.raises(ValueError, match=r"levels .*6 rows.* 6; .*\[0, 6\]"):
        env.assign_levels([0, 6])


# -- resets -----------------------------------------------------------------------------------------------------------


def test_episodes_are_taken_from_the_pool() -> None:
    env = marine("v2", num_envs=50, pool=4)
    env.reset()
    starts = env.state.motion[PLACE].flatten(0, 1).t().unique(dim=0)
    assert len(starts) == 4
    firsts = marine("v2", num_envs=4, pool=4, in_order=True)
    firsts.reset()
    assert len(firsts.state.motion[PLACE].flatten(0, 1).t().unique(dim=0)) == 4


def test_in_order_the_worlds_follow_each_other() -> None:
    env, one = marine("v2", num_envs=3, pool=6, in_order=True), marine("v2", num_envs=1, pool=6, in_order=True)
    begun = [env.reset()["robots", "observation"] for _ in range(3)]
    alone = torch.cat([one.reset()["robots", "observation"] for _ in range(6)])
    assert torch.equal(torch.cat(begun[:2]), alone)
    # All worlds of the pool have been played.
    assert torch.equal(begun[2], begun[0])


# -- seeds and state --------------------------------------------------------------------------------------------------


def test_replay_keeps_what_policies_look_at() -> None:
    names = ["observation", "object_mask", "active", "clearance"]
    assert marine("v2").stored_keys == [("robots", name) for name in names]
    assert marine("v2, one robot").stored_keys == names
