"""The environment by its contract: keys, levels, resets, seeds, state."""

from __future__ import annotations

import inspect
import itertools
import math
from typing import Any

import pytest
import torch
from torchrl.envs.utils import check_env_specs

from tests.envs.marine.settings import (
    SETTINGS,
    acted,
    assert_same,
    homing_action,
    marine,
    play,
    random_action,
    robots_of,
)
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.envs.marine.types import CRAFTS, PLACE, QUIRKS

# -- keys and specs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS)
def test_specs_hold(setting: str) -> None:
    check_env_specs(marine(setting), seed=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("setting", ["v2", "v3", "v3, discrete"])
def test_keys_shapes_and_types_are_those_documented(setting: str, dtype: str) -> None:
    env, number = marine(setting, num_envs=4, dtype=dtype), getattr(torch, dtype)
    n, r, features, slots = 4, 5, *((39, 10) if env.version == "v2" else (32, 5))
    flag, ended = ((n, r, 1), torch.bool), ("done", "terminated", "truncated")
    robots = {
        "observation": ((n, r, features), number),
        "object_mask": ((n, r, slots), torch.bool),
        **dict.fromkeys(("active", "arrived", "collided", *ended), flag),
        **dict.fromkeys(("clearance", "energy"), ((n, r, 1), number)),
    }
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
    assert env.action_spec["robots", "action"].shape == ((n, r) if env.num_actions else (n, r, 2))


def shapes(seen: Any) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {key: (tuple(value.shape), value.dtype) for key, value in seen.items()}


@pytest.mark.parametrize("setting", ["v2, one robot", "v3, one robot"])
def test_a_flat_robot_is_the_one_of_its_group(setting: str) -> None:
    flat, grouped = (marine(setting, num_envs=5, max_steps=40, flat=flat) for flat in (True, False))
    generator = torch.Generator().manual_seed(0)
    ours, theirs, ends = flat.reset(), grouped.reset(), 0
    for _ in range(60):
        action = random_action(grouped, generator)
        mine, ours = flat.step_and_maybe_reset(acted(flat, ours, action))
        other, theirs = grouped.step_and_maybe_reset(acted(grouped, theirs, action))
        for key, value in mine["next"].items():
            nested = other["next", "robots"].get(key, None)
            expected = other["next", key] if nested is None else nested.squeeze(1)
            assert torch.equal(value, expected), key
        ends += int(mine["next", "done"].sum())
    assert ends > 0
    assert set(flat.reset().keys()) >= {"observation", "object_mask", "active", "clearance", "episode_step"}


def test_constructor_arguments_can_be_read_back() -> None:
    arguments: dict[str, Any] = {
        "num_envs": 2,
        "version": "v3",
        "robots": 3,
        "cores": 2,
        "obstacles": 1,
        "min_distance": 25.0,
        "curriculum": None,
        "max_steps": 50,
        "actions": "discrete",
        "upstream_compat": ("lagged_velocity",),
        "end_on_collision": True,
        "sensor_noise": False,
        "pool": 7,
        "in_order": True,
        "flat": False,
        "dtype": torch.float64,
        "device": torch.device("cpu"),
        "seed": 5,
        "first_env": 3,
        "copy_observations": True,
    }
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
        ({"flat": True}, "flat wants one robot; got 5"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^MarineNavEnv: .*{message}"):
        marine(**arguments)


# -- a step -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["v2, curriculum", "v3", "v3, curriculum"])
def test_who_takes_no_part_stands_still_sees_nothing_and_gets_nothing(setting: str) -> None:
    env = marine(setting, num_envs=12)
    if len(env.levels) > 1:
        env.assign_levels([i % 6 for i in range(12)])
    current, stopped = env.reset(), 0
    for _ in range(60):
        place = env.state.motion[PLACE].clone()
        step, following = env.step_and_maybe_reset(acted(env, current, random_action(env, torch.Generator())))
        out = ~step["robots", "active"][..., 0]
        after = step["next", "robots"]
        assert (after["reward"][out] == 0).all()
        assert not after["observation"][out].any()
        assert not after["object_mask"][out].any()
        assert torch.equal(after["energy"][out], step["robots", "energy"][out])
        going = ~step["next", "done"].expand_as(out)
        still = (env.state.motion[PLACE] == place).all(0).t()
        assert still[out & going].all()
        assert not after["active"][out].any()
        stopped += int((out & going).sum())
        current = following
    assert stopped > 20


@pytest.mark.parametrize("setting", ["v2", "v3, discrete"])
def test_masks_leave_only_the_idle_action_to_who_takes_no_part(setting: str) -> None:
    env = marine(setting, num_envs=8)
    idle = CRAFTS[env.version].idle
    seen = [step["next", "robots"] for step in play(env, 60)[0]]
    for robots in seen:
        active, mask = robots["active"], robots["action_mask"]
        assert (mask.all(-1, keepdim=True) | ~active).all()
        assert (mask[~active[..., 0]].sum(-1) == 1).all()
        assert mask[..., idle].all()
    assert any((~robots["active"]).any() for robots in seen)


@pytest.mark.parametrize("setting", ["v2", "v3"])
def test_flags_agree_with_each_other(setting: str) -> None:
    env = marine(setting, num_envs=10, max_steps=70)
    kinds = dict.fromkeys(("arrived", "collided", "truncated", "success"), 0)
    for step in play(env, 150)[0]:
        after, robots = step["next"], step["next", "robots"]
        assert torch.equal(robots["terminated"], robots["arrived"] | robots["collided"])
        assert torch.equal(robots["active"], ~robots["terminated"])
        assert not (robots["arrived"] & robots["collided"]).any()
        assert torch.equal(robots["done"], robots["terminated"] | robots["truncated"])
        assert torch.equal(after["done"], robots["done"].all(1))
        assert torch.equal(after["done"], after["terminated"] | after["truncated"])
        assert torch.equal(after["truncated"], after["episode_step"] == 70)
        assert torch.equal(after["terminated"], ~robots["active"].any(1))
        assert torch.equal(after["success"], robots["arrived"].all(1))
        for kind in kinds:
            kinds[kind] += int((robots if kind in robots else after)[kind].sum())
    assert min(kinds["arrived"], kinds["collided"], kinds["truncated"]) > 0


def test_rewards_tell_the_way_made_and_how_it_ended() -> None:
    # Over an episode: −1 a step, the distance made good, and +100 or −50 at the end.
    env = marine("v2", num_envs=8)
    seen, _ = play(env, 60, start=(first := env.reset()))
    begun = first["robots", "observation"][..., :2].norm(dim=-1)
    total, alive = torch.zeros(8, 5), torch.ones(8, 5, dtype=torch.bool)
    ends, fresh = 0, torch.ones(8, 1, dtype=torch.bool)
    for step in seen:
        robots = step["next", "robots"]
        total += torch.where(fresh, robots["reward"][..., 0], 0)
        over = alive & robots["terminated"][..., 0] & fresh
        left = robots["observation"][..., :2].norm(dim=-1)
        bonus = torch.where(robots["arrived"][..., 0], 100.0, -50.0)
        expected = begun - left - step["next", "episode_step"] + bonus
        assert torch.allclose(total[over], expected[over], atol=1e-3)
        alive &= ~over
        ends += int(over.sum())
        fresh = fresh & ~step["next", "done"]
    assert ends > 8


@pytest.mark.parametrize("quirk", QUIRKS)
def test_every_quirk_changes_something_and_can_be_had_alone(quirk: str) -> None:
    changes: dict[str, Any] = {
        "touching_cores": {"robots": 2, "cores": 20, "obstacles": 0, "pool": 100},
        "fewer_objects": {"robots": 2, "cores": 54, "obstacles": 0, "min_distance": 10.0, "pool": 20},
    }.get(quirk, {"max_steps": 5})
    runs = []
    for compat in ((), (quirk,)):
        env = marine(num_envs=100, in_order=True, upstream_compat=compat, **changes)
        runs.append(play(env, 6, start=env.reset())[0])
    different = [not all(torch.equal(a[key], b[key]) for key in a.keys(True, True)) for a, b in zip(*runs, strict=True)]
    assert any(different)


@pytest.mark.parametrize("compat", [False, True])
def test_the_vessel_is_the_released_one_with_and_without_the_quirks(compat: bool) -> None:
    # 0.981457 rad/s is how fast full differential thrust turns the released vessel, measured by running it.
    env = marine("v3, one robot", obstacles=0, upstream_compat=compat, dtype="float64")
    current = env.reset()
    for _ in range(100):
        current = env.step_mdp(env.step(acted(env, current, torch.tensor([1.0, -1.0]).double().expand(3, 1, 2))))
    assert current["active"].all()
    assert (current["observation"][:, 4] - 0.981457).abs().max() < 5e-7


def test_a_lagged_velocity_changes_what_the_rules_of_the_road_cost_and_nothing_else_of_the_reward() -> None:
    # It decides the course that a turn is counted from, and by 0.5 m/s whether a rule applies at all; the way made
    # does not depend on it. v2, which has no such rules, gives the same rewards.
    for setting, differs in (("v3, true sensors", True), ("v2", False)):
        ours, lagged = (marine(setting, 64, dtype="float64", upstream_compat=c) for c in ((), ("lagged_velocity",)))
        seen, same = ours.reset(), lagged.reset()
        different = 0
        for _ in range(40):
            action = homing_action(ours, seen)
            seen, same = ours.step(acted(ours, seen, action)), lagged.step(acted(lagged, same, action))
            assert torch.equal(ours.state.motion[PLACE], lagged.state.motion[PLACE])
            cost = (seen["next", "robots", "reward"] - same["next", "robots", "reward"]).abs()
            assert cost.max() <= 0.1 * math.pi
            different += int((cost > 1e-6).sum())
            seen, same = ours.step_mdp(seen), lagged.step_mdp(same)
        assert (different > 0) is differs


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


def test_levels_begin_at_their_steps() -> None:
    env = marine("v2, curriculum")
    at = {0: 0, 999_999: 0, 1_000_000: 1, 4_999_999: 4, 5_000_000: 5, 10**9: 5}
    assert {step: env.level_at(step) for step in at} == at
    assert marine("v2").level_at(10**9) == 0


def test_every_environment_may_have_a_level_of_its_own() -> None:
    env = marine("v2, curriculum", num_envs=6)
    env.assign_levels([0, 1, 2, 3, 4, 5])
    first = env.reset()
    assert first["level"].flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert first["robots", "active"].sum(1).flatten().tolist() == [3, 5, 7, 7, 7, 7]
    assert (env.scene.circulation != 0).sum(0).flatten().tolist() == [4, 6, 8, 8, 8, 8]
    with pytest.raises(ValueError, match=r"levels must be 6 rows below 6; got \[0, 6\]"):
        env.assign_levels([0, 6])


# -- resets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["v2", "v3", "v2, one robot"])
def test_a_partial_reset_leaves_the_other_rows_as_they_are(setting: str) -> None:
    env = marine(setting, num_envs=4)
    _, current = play(env, 8)
    before, mask = env.state_dict(), torch.tensor([True, False, True, False])
    after = env.reset(current.clone().set("_reset", mask[:, None]))
    state = env.state_dict()
    for name in set(before) - {"seed"}:
        by_row = 0 if name in ("observation", "object_mask") else -1
        kept, was = (each[name].movedim(by_row, 0)[~mask] for each in (state, before))
        assert torch.equal(kept, was), name
    keys = [*env.observation_spec.keys(True, True)]
    assert_same(after.select(*keys)[~mask], current.select(*keys)[~mask])
    assert (after["episode_step"][mask] == 0).all()
    assert (current["episode_step"][mask] > 0).all()
    assert robots_of(env, after)["active"][mask].all()
    assert (robots_of(env, after)["energy"][mask] == 0).all()
    assert not after["done"].any()


@pytest.mark.parametrize("setting", ["v2", "v3"])
def test_the_terminal_observation_stays_in_next_and_the_root_begins_anew(setting: str) -> None:
    env = marine(setting, num_envs=10)
    keys, ended = [*env.observation_spec.keys(True, True)], 0
    for step in (seen := play(env, 120)[0]):
        done = step["next", "done"][:, 0]
        assert (step["next", "episode_step"][done] > 0).all()
        last = step["robots", "active"][..., 0] & done[:, None]
        assert step["next", "robots", "observation"][last].any(-1).all()
        ended += int(done.sum())
    assert ended > 5
    for step, following in itertools.pairwise(seen):
        done = step["next", "done"][:, 0]
        assert_same(step["next"].select(*keys)[~done], following.select(*keys)[~done])
        assert (following["episode_step"][done] == 0).all()
        assert following["robots", "active"][done].all()
        assert not following["done"].any()


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
    assert torch.equal(begun[2], begun[0])  # the pool is through


# -- seeds and state --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["v2", "v3"])
def test_the_same_seed_gives_the_same_run_and_another_does_not(setting: str) -> None:
    runs = [play(marine(setting, seed=seed), 30)[0] for seed in (0, 0, 1)]
    for first, second in zip(*runs[:2], strict=True):
        assert_same(first, second)
    key = "robots", "observation"
    assert not torch.equal(runs[0][-1][key], runs[2][-1][key])


def test_set_seed_starts_the_streams_again() -> None:
    env = marine("v3")
    first = play(env, 20)[0]
    env.set_seed(0)
    for step, again in zip(first, play(env, 20)[0], strict=True):
        assert_same(step, again)
    env.set_seed(1)
    assert_same(env.reset(), marine("v3", seed=1).reset())


def test_an_environment_plays_the_same_among_any_number_of_others() -> None:
    many, few = marine("v3", num_envs=6), marine("v3", num_envs=2, first_env=3)
    ours, theirs = many.reset(), few.reset()
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        action = random_action(many, generator)
        step, ours = many.step_and_maybe_reset(acted(many, ours, action))
        other, theirs = few.step_and_maybe_reset(acted(few, theirs, action[3:5]))
        for key in other.keys(True, True):
            assert torch.allclose(step[key][3:5].double(), other[key].double(), atol=1e-4), key


@pytest.mark.parametrize("setting", ["v2, curriculum", "v3"])
def test_a_saved_state_goes_on_as_if_never_stopped(setting: str) -> None:
    env = marine(setting, num_envs=4, max_steps=25)
    env.set_level(2_000_000)
    _, current = play(env, 40)
    saved, start = env.state_dict(), current.clone()
    onward = play(env, 40, start=current)[0]
    other = marine(setting, num_envs=4, max_steps=25, seed=9)
    other.load_state_dict(saved)
    for step, again in zip(onward, play(other, 40, start=start)[0], strict=True):
        assert_same(step, again)
    assert any(step["next", "done"].any() for step in onward)
    with pytest.raises(ValueError, match=r"MarineNavEnv\.load_state_dict: .* must have shape"):
        marine(setting, num_envs=3).load_state_dict(saved)


def test_replay_keeps_what_policies_look_at() -> None:
    names = ["observation", "object_mask", "active", "clearance"]
    assert marine("v2").stored_keys == [("robots", name) for name in names]
    assert marine("v2, one robot").stored_keys == names
