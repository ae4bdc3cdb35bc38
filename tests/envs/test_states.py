"""States from outside.

Whatever is wrong with one is said in one line, and nothing has changed then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from tests.envs.packing.settings import packing, play
from tests.envs.test_base import Countdown, down
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.state_validation import ANY, Bounds

Change = Callable[[Tensor], object]


def at(index: Any, value: float) -> Change:
    def change(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed[index] = value
        return changed

    return change


def marine(**changes: object) -> MarineNavEnv:
    settings = {"version": "v3", "robots": 2, "obstacles": 1, "min_distance": 10.0, "pool": 4}
    return MarineNavEnv(2, **settings | {"device": "cpu", "seed": 0} | changes)


@pytest.fixture(scope="module")
def played() -> dict[str, BatchedEnv]:
    boxes = packing("three visible")
    solids = packing("irregular", num_envs=2)
    sea = marine()
    for env in (boxes, solids):
        play(env, 3)
    sea.rollout(3, break_when_any_done=False)
    return {"boxes": boxes, "solids": solids, "sea": sea}


FORMS: list[tuple[Change, str]] = []
FORMS.append((lambda value: value.tolist(), "tensor; got "))
FORMS.append((lambda value: None, "tensor; got none"))
FORMS.append((lambda value: value.to(torch.complex64), "dtype .*; got complex64"))
FORMS.append((lambda value: value.to("meta"), "data; got one without"))
FORMS.append((lambda value: value[:-1], r"shape \(.*\); got \("))
FORMS.append((lambda value: value[None], r"shape \(.*\); got \(1, "))
FORMS.append((lambda value: value.to_sparse(), "dense .*; got one of layout sparse_coo"))


@pytest.mark.parametrize("name", ["boxes", "solids", "sea"])
def test_every_entry_has_its_form(played: dict[str, BatchedEnv], name: str) -> None:
    env = played[name]
    for entry in set(env.state_dict()) - {"seed"}:
        for change, message in FORMS:
            refused(env, entry, change, message)


POISON: list[tuple[str, str, Change, str]] = []
POISON.append(("boxes", "num_packed", at(0, -50), "must be from 0 to 12; got -50 at [0]"))
POISON.append(("boxes", "num_packed", at(1, 13), "must be from 0 to 12; got 13 at [1]"))
POISON.append(("boxes", "item_id", at((0, 1), -7), "must be from -1 to 63; got -7 at [0, 1]"))
POISON.append(("boxes", "item_id", at((2, 0), 64), "must be from -1 to 63; got 64 at [2, 0]"))
POISON.append(("boxes", "item_id", lambda value: torch.full_like(value, -1), "a legal placement of an empty slot"))
POISON.append(("boxes", "heightmap", at((0, 3, 4), float("nan")), "got nan at [0, 3, 4]"))
POISON.append(("boxes", "heightmap", at((0, 3, 4), float("inf")), "got inf at [0, 3, 4]"))
POISON.append(("boxes", "heightmap", at((0, 3, 4), -0.5), "must be from 0 to 10.002; got -0.5 at [0, 3, 4]"))
POISON.append(("boxes", "heightmap", at((0, 3, 4), 11), "got 11 at [0, 3, 4]"))
POISON.append(("boxes", "legal", torch.ones_like, "a legal placement beyond the walls"))
POISON.append(("boxes", "position", at(0, -1), "must be from 0 to 15; got -1 at [0]"))
POISON.append(("boxes", "key", at(0, 2**32), "must be from 0 to 4294967295; got 4294967296 at [0]"))
POISON.append(("boxes", "episode", at(0, -1), "got -1 at [0]"))
POISON.append(("boxes", "step_count", at(0, -1), "got -1 at [0]"))
POISON.append(("boxes", "volume", at(0, float("nan")), "got nan at [0]"))
POISON.append(("boxes", "volume", at(0, 1e30), "must be from 0 to 1001; got 1e+30 at [0]"))
POISON.append(("boxes", "placements", at((0, 0, 0), 64), "must be from 0 to 63; got 64 at [0, 0, 0]"))
POISON.append(("boxes", "placements", at((0, 0, 1), 2), "must be from 0 to 1; got 2 at [0, 0, 1]"))
POISON.append(("boxes", "placements", at((0, 0, 2), -1), "must be from 0 to 9; got -1 at [0, 0, 2]"))
POISON.append(
    ("boxes", "placements", at((0, 0, 3), 9), "must be inside the bin; got one that reaches beyond the walls")
)
POISON.append(("boxes", "placement_z", at((0, 0), float("nan")), "got nan at [0, 0]"))
POISON.append(("boxes", "z_map", at((0, 0, 0, 0, 0), 1e9), "got 1"))
POISON.append(("solids", "item_id", at((0, 0), 6), "must be from -1 to 5; got 6 at [0, 0]"))
POISON.append(("solids", "placements", at((0, 0, 1), 24), "must be from 0 to 23; got 24 at [0, 0, 1]"))
POISON.append(("sea", "motion", at((0, 0, 0), float("nan")), "got nan at [0, 0, 0]"))
POISON.append(("sea", "motion", at((0, 0, 0), 1e30), "got 1e+30 at [0, 0, 0]"))
POISON.append(("sea", "scene", at((0, 0), float("inf")), "got inf at [0, 0]"))
POISON.append(("sea", "level", at(0, 1), "must be from 0 to 0; got 1 at [0]"))
POISON.append(("sea", "next_level", at(1, -1), "must be from 0 to 0; got -1 at [1]"))
POISON.append(("sea", "key", at(0, -1), "must be from 0 to 4294967295; got -1"))
POISON.append(("sea", "episode", at(0, -1), "got -1 at [0]"))
POISON.append(("sea", "step_count", at(0, -1), "got -1 at [0]"))
POISON.append(("sea", "object_mask", at((0, 0, 0), 2), "must be from 0 to 1; got 2 at [0, 0, 0]"))
POISON.append(("sea", "energy", at((0, 0), -1), "got -1 at [0, 0]"))
POISON.append(("sea", "exists", torch.zeros_like, "active must be false for robots that do not exist"))
POISON.append(
    ("sea", "collided", torch.ones_like, "active must be false for robots that do not exist, arrived or collided")
)
POISON.append(("sea", "score", at((0, 0), float("nan")), "got nan at [0, 0]"))
POISON.append(("sea", "observation", at((0, 0, 0), float("nan")), "got nan at [0, 0, 0]"))
POISON.append(("sea", "clearance", at((0, 0), float("inf")), "got inf at [0, 0]"))


@pytest.mark.parametrize("name", ["boxes", "solids", "sea"])
def test_no_value_that_the_environment_could_not_have_written(played: dict[str, BatchedEnv], name: str) -> None:
    for _, entry, change, message in (case for case in POISON if case[0] == name):
        refused(played[name], entry, change, re.escape(message))


def refused(env: BatchedEnv, entry: str, change: Change, message: str) -> None:
    """A changed state is refused in one line, in every way of loading it.

    The environment is unchanged.
    """
    before = env.state_dict()
    changed = before | {entry: change(before[entry])}
    with pytest.raises(ValueError, match=message) as error:
        env.load_state_dict(changed)
    for strict_or_not in (
        lambda: env.load_state_dict({entry: changed[entry]}, strict=False),
        lambda: setattr(env, "state", replace(env.state, **{entry: changed[entry]})),
    ):
        with pytest.raises(ValueError, match=message):
            strict_or_not()
    after = env.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    line = str(error.value)
    assert line.startswith(f"{type(env).__name__}.load_state_dict: ")
    assert "\n" not in line
    assert line.count("; got ") == 1


@pytest.mark.parametrize("name", ["boxes", "solids", "sea"])
def test_a_state_that_is_assigned_is_copied(played: dict[str, BatchedEnv], name: str) -> None:
    env: Any = played[name].like(played[name].num_envs)
    env.state = played[name].state  # type: ignore[attr-defined]
    theirs = vars(played[name].state)
    for key, value in vars(env.state).items():
        # A state without cells that bear load has None for them.
        assert value is None or torch.equal(value, theirs[key]), key
        assert value is None or value is not theirs[key], key
    with pytest.raises(ValueError, match=r"\.state: \w+ .*tensor.* none$"):
        env.state = None


def test_maps_follow_from_heights_whatever_came_with_them(played: dict[str, BatchedEnv]) -> None:
    env, other = played["boxes"], packing("three visible")
    saved = env.state_dict()
    flat = {"z_map": torch.zeros_like(saved["z_map"]), "legal": torch.zeros_like(saved["legal"])}
    other.load_state_dict(saved | flat)
    assert all(torch.equal(value, saved[name]) for name, value in other.state_dict().items())


def test_what_is_no_state_at_all() -> None:
    env = packing()
    for given in (None, 3, [1], {}, {1: torch.zeros(1), "a": 3}):
        with pytest.raises(ValueError, match=r"^PackingEnv\.load_state_dict: "):
            env.load_state_dict(given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"entries .*'spare'"):
        env.load_state_dict(env.state_dict() | {"spare": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"^PackingEnv\.load_state_dict: seed .*\(\).*\(1,\)$"):
        env.load_state_dict(env.state_dict() | {"seed": torch.zeros(1, dtype=torch.int64)})


def test_a_seed_without_room_for_its_worlds_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    env = marine()

    def no_room(*_: object) -> None:
        raise ValueError("no room")

    monkeypatch.setattr("torchrl_gpu.envs.marine.env.generate", no_room)
    before = env.state_dict()
    with pytest.raises(ValueError, match="no room"):
        env.load_state_dict(before | {"seed": torch.tensor(5), "step_count": torch.tensor([3, 3])})
    assert env.seed == 0
    assert all(torch.equal(value, before[name]) for name, value in env.state_dict().items())


class Bounded(Countdown):
    def _state_bounds(self) -> dict[str, Bounds]:
        return {"left": Bounds(0, 5), "episode": Bounds(low=0)}


def test_a_third_environment_declares_its_bounds() -> None:
    env = Bounded(device="cpu", seed=0)
    down(env, env.reset())
    saved = env.state_dict()
    env.load_state_dict(saved)
    for entry, value, message in (("left", 6, "from 0 to 5; got 6"), ("episode", -1, "at least 0; got -1")):
        with pytest.raises(ValueError, match=rf"^Bounded\.load_state_dict: {entry} must be {message} at \[0\]$"):
            env.load_state_dict(saved | {entry: at(0, value)(saved[entry])})


# -- what else comes in at a step ------------------------------------------------------------------------------------


ACTIONS: list[tuple[Any, str]] = [(None, "none")]
ACTIONS.append((torch.zeros(3), r"float32 of shape \(3,\) on cpu"))
ACTIONS.append((torch.zeros(3, dtype=torch.bool), r"bool of shape \(3,\) on cpu"))
ACTIONS.append((torch.zeros(3, 2, dtype=torch.int64), r"int64 of shape \(3, 2\) on cpu"))
ACTIONS.append((torch.zeros(3, dtype=torch.complex64), r"complex64 of shape \(3,\) on cpu"))


def test_actions_of_another_kind_or_shape() -> None:
    env = packing()
    current = env.reset()
    before = env.state_dict()
    for action, came in ACTIONS:
        given = current if action is None else current.clone().set("action", action)
        with pytest.raises(ValueError, match=rf"^PackingEnv\.step: action .*whole numbers .*\(3,\) .*cpu; got {came}$"):
            env.step(given)
    assert all(torch.equal(value, before[name]) for name, value in env.state_dict().items())


def test_whole_numbers_in_a_column_are_actions() -> None:
    env, twin = packing(), packing()
    action = torch.tensor([5, 100, 42])
    ours = env.step(env.reset().set("action", action.short()[:, None]))["next"]
    theirs = twin.step(twin.reset().set("action", action))["next"]
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs.keys())  # noqa: SIM118


@pytest.mark.parametrize(
    ("changes", "action", "wanted"),
    [
        ({}, None, r"real numbers of shape \(2, 2, 2\)"),
        ({}, torch.zeros(2, 2), r"real numbers of shape \(2, 2, 2\)"),
        ({"actions": "discrete"}, torch.zeros(2, 2), r"whole numbers of shape \(2, 2\)"),
    ],
)
def test_actions_of_robots_of_another_kind_or_shape(changes: dict[str, object], action: object, wanted: str) -> None:
    env = marine(**changes)
    current = env.reset()
    if action is not None:
        current.set(("robots", "action"), action)
    with pytest.raises(ValueError, match=rf"^MarineNavEnv\.step: robots/action .*{wanted} .*cpu; got "):
        env.step(current)


def test_a_thrust_that_is_no_number_is_none() -> None:
    def after(thrust: Tensor) -> Tensor:
        env = marine()
        current = env.reset().set(("robots", "action"), thrust)
        return env.step(current)["next", "robots", "observation"]

    nan = torch.full((2, 2, 2), float("nan"))
    assert torch.equal(after(nan), after(torch.zeros(2, 2, 2)))


@pytest.mark.parametrize("mask", [torch.ones(3, 1), torch.ones(3, 2, dtype=torch.bool)])
def test_a_mask_of_rows_to_restart_is_boolean(mask: Tensor) -> None:
    env = packing()
    with pytest.raises(ValueError, match=r"reset: _reset .*bool .*\(3, 1\); got "):
        env._reset(TensorDict({"_reset": mask}, batch_size=[3]))


def test_seeds_are_whole_numbers() -> None:
    env = packing()
    for seed in (2.5, "a", True, 2**63):
        with pytest.raises(ValueError, match=r"^PackingEnv\.set_seed: seed .*; got "):
            env.set_seed(seed)  # type: ignore[arg-type]
    assert env.seed == 0


# -- what goes out ---------------------------------------------------------------------------------------------------


def acted(env: Any, current: TensorDict, number: int) -> TensorDict:
    generator = torch.Generator().manual_seed(number)
    if isinstance(env, MarineNavEnv):
        return current.set(("robots", "action"), torch.rand(2, 2, 2, generator=generator) * 2 - 1)
    return current.set("action", torch.randint(0, env.num_actions, (env.num_envs,), generator=generator))


def spoil(observation: TensorDict) -> None:
    for value in observation.values(True, True):
        value.copy_(~value if value.dtype == torch.bool else value.new_full(value.shape, 3))


def one_robot(**changes: object) -> MarineNavEnv:
    return MarineNavEnv(
        2, robots=1, cores=1, obstacles=1, pool=2, flat=True, device="cpu", seed=0, max_steps=3, **changes
    )


SEEN: dict[str, Callable[..., Any]] = {
    "boxes": partial(packing, "three visible"),
    "solids": partial(packing, "irregular", num_envs=2),
    "masks only": partial(packing, "masks only"),
    "sea": partial(marine, max_steps=4),
    "one robot": one_robot,
}


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("resets", [False, True])
def test_a_copied_observation_can_be_written_into(name: str, resets: bool) -> None:
    env, twin = SEEN[name](copy_observations=True), SEEN[name]()
    ours, theirs = env.reset(), twin.reset()
    for number in range(6):
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs.keys(True, True))
        spoil(ours)
        if isinstance(env, MarineNavEnv) and env.flat:
            for current in (ours, theirs):
                current.set("action", torch.tensor([1, 5]))
        else:
            ours, theirs = acted(env, ours, number), acted(twin, theirs, number)
        if resets:
            (step, ours), (other, theirs) = env.step_and_maybe_reset(ours), twin.step_and_maybe_reset(theirs)
            assert all(torch.equal(step["next", key], other["next", key]) for key in other["next"].keys(True, True))
            spoil(step["next"])
        else:
            ours, theirs = env.step(ours)["next"], twin.step(theirs)["next"]


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("copy", [False, True])
def test_what_was_given_out_stays_as_it_was(name: str, copy: bool) -> None:
    env = SEEN[name](copy_observations=copy)
    given, current = [], env.reset()
    for number in range(5):
        given.append((current.copy(), current.clone()))
        spec = env.full_action_spec
        current.update(spec.zero() if isinstance(env, MarineNavEnv) else acted(env, current, number).select("action"))
        step, current = env.step_and_maybe_reset(current)
        given.append((step["next"], step["next"].clone()))
    for kept, copied in given:
        assert all(torch.equal(kept[key], value) for key, value in copied.exclude("action").items(True, True))


# -- bounds, element by element ---------------------------------------------------------------------------------------

VALUES = (-math.inf, -2.0, 0.0, 2.0, math.inf, math.nan)


@pytest.mark.parametrize(
    ("bounds", "allowed"),
    [
        (Bounds(), {-2.0, 0.0, 2.0}),
        (Bounds(*ANY), {-math.inf, -2.0, 0.0, 2.0, math.inf}),
        (Bounds(-2, 0), {-2.0, 0.0}),
        (Bounds(torch.tensor([-math.inf, 0, 1, 1, 1, 1]), torch.tensor(2.0)), {-math.inf, 2.0}),
    ],
    ids=str,
)
def test_floats_by_hand(bounds: Bounds, allowed: set[float]) -> None:
    violated = bounds.violated(torch.tensor(VALUES)).tolist()
    assert {value for value, bad in zip(VALUES, violated, strict=True) if not bad} == allowed


def test_a_float_with_one_bound_by_hand() -> None:
    numbers = torch.tensor([-2.0, 0.0, 2.0, math.nan])
    assert Bounds(low=0).violated(numbers).tolist() == [True, False, False, True]
    assert Bounds(high=0).violated(numbers).tolist() == [False, False, True, True]


def test_whole_numbers_and_flags_by_hand() -> None:
    numbers = torch.tensor([-1, 0, 5, 6])
    assert Bounds().violated(numbers).tolist() == [False] * 4
    assert Bounds(0, 5).violated(numbers).tolist() == [True, False, False, True]
    assert Bounds(low=0).violated(numbers).tolist() == [True, False, False, False]
    assert Bounds(1, 1).violated(torch.tensor([False, True])).tolist() == [False, False]
