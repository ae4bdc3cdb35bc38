"""Random states, actions and replayed states.

They give a ValueError, or what the plain torch kernels give, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

from tests.envs.packing.settings import packing, play
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.kernels import available_backends
from torchrl_gpu.policies.packing import DeepestBottomLeft
from torchrl_gpu.policies.packing.heuristics import (
    HeightmapMinimization,
    LeastSurfaceArea,
    MaximalAccessibleSpace,
    VolumeSorted,
)

DTYPES = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.float64, torch.float16]
# Numbers for integers that a drawn number does not fit.
LARGEST = {torch.int64: 10**12, torch.int32: 2**31 - 1}
VALUES = [-(2**63), -(10**12), -50, -7, -1, 0, 1, 3, 7, 64, 10**9, 10**12, 2**63 - 1, math.nan, math.inf, 1e30, -0.5]
NAMES = ["three visible", "irregular"]
BACKEND = "compiled" if not available_backends()["compiled"] else "eager"
FUZZ = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def pair(name: str) -> tuple[PackingEnv, PackingEnv]:
    ours = packing(name, num_envs=2, backend=BACKEND)
    theirs = packing(name, num_envs=2, backend="eager")
    play(ours, 3)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


PAIRS = {name: pair(name) for name in NAMES}
SAVED = {name: ours.state_dict() for name, (ours, _) in PAIRS.items()}


@st.composite
def perturbed(draw: Any, value: Tensor) -> Tensor:
    value = value.clone()
    kind = draw(st.sampled_from(["values", "values", "values", "dtype", "shape", "all"]))
    if kind == "dtype":
        return value.to(draw(st.sampled_from(DTYPES)))
    if kind == "shape":
        return draw(st.sampled_from([value[:1], value[..., None], value.flatten(), value[None], value.new_zeros(0)]))
    number = draw(st.sampled_from(VALUES))
    if not value.is_floating_point() and (isinstance(number, float) or not -(2**31) <= number < 2**31):
        number = LARGEST.get(value.dtype, 1)
    number = float(number) if value.is_floating_point() else number
    if kind == "all":
        return torch.full_like(value, number)
    value.view(-1)[draw(st.integers(0, value.numel() - 1))] = number
    return value


def same(ours: TensorDict, theirs: TensorDict) -> None:
    """By two backends: heights to within rounding, everything else to the bit."""
    for key in theirs.keys(True, True):
        a, b = ours[key], theirs[key]
        assert torch.allclose(a, b, atol=1e-5, equal_nan=True) if a.is_floating_point() else torch.equal(a, b), key


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(data=st.data())
def test_any_state_is_refused_or_goes_on(name: str, data: st.DataObject) -> None:
    ours, theirs = PAIRS[name]
    saved = SAVED[name]
    state = dict(saved)
    for entry in data.draw(st.lists(st.sampled_from([*saved]), min_size=1, max_size=2, unique=True)):
        state[entry] = data.draw(perturbed(saved[entry]) if saved[entry].ndim else st.just(saved[entry]))
    ours.load_state_dict(saved)
    try:
        ours.load_state_dict(state)
    except ValueError:
        assert all(torch.equal(value, saved[key]) for key, value in ours.state_dict().items())
        return
    theirs.load_state_dict(state)
    current = TensorDict({}, batch_size=[2])
    for number in data.draw(st.lists(st.integers(-3, ours.num_actions + 2), min_size=1, max_size=3)):
        action = torch.tensor([number, ours.num_actions - 1 - number])
        first = ours.step_and_maybe_reset(current.clone().set("action", action))
        second = theirs.step_and_maybe_reset(current.clone().set("action", action))
        same(first[0]["next"], second[0]["next"])
        same(first[1], second[1])


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(data=st.data())
def test_any_action_is_refused_or_counts(name: str, data: st.DataObject) -> None:
    ours, theirs = PAIRS[name]
    action = data.draw(perturbed(torch.tensor([1, 2])))
    for env in (ours, theirs):
        env.load_state_dict(SAVED[name])
    try:
        first = ours.step(TensorDict({"action": action}, batch_size=[2]))["next"]
    # tensordict itself refuses what has not the batch's length.
    except (ValueError, RuntimeError):
        assert action.dtype in (torch.float32, torch.float64, torch.float16, torch.bool) or action.shape != (2,)
        return
    assert not action.is_floating_point()
    same(first, theirs.step(TensorDict({"action": action.long().view(2)}, batch_size=[2]))["next"])


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(data=st.data())
def test_any_replayed_state_is_refused_or_restored(name: str, data: st.DataObject) -> None:
    ours, theirs = PAIRS[name]
    given_ = {"box_heightmap": SAVED[name]["heightmap"], "item_id": SAVED[name]["item_id"]}
    entry = data.draw(st.sampled_from([*given_]))
    changed = data.draw(perturbed(given_[entry]))
    state = given_ | {entry: changed}
    if entry == "box_heightmap" and not (changed.isfinite() & (changed >= 0) & (changed < 1e3)).all():
        # Heights are not read in an update, so such heights need only not crash.
        return
    try:
        restored = ours.restore(TensorDict(state, batch_size=[2]))
    except (ValueError, RuntimeError):
        assert changed.dtype != given_[entry].dtype or changed.shape != given_[entry].shape
        return
    item_id = state["item_id"]
    known = torch.where((item_id >= 0) & (item_id < ours.catalogue.num_items), item_id, -1)
    plain = theirs.restore(TensorDict({"box_heightmap": state["box_heightmap"], "item_id": known}, batch_size=[2]))
    same(restored.exclude("item_id"), plain.exclude("item_id"))
    assert not restored["item_mask"][known < 0].any()


POLICIES = [DeepestBottomLeft, HeightmapMinimization, LeastSurfaceArea, MaximalAccessibleSpace]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("policy", POLICIES)
@settings(FUZZ, max_examples=4)
@given(data=st.data())
def test_any_observation_is_refused_or_acted_on(name: str, policy: type, data: st.DataObject) -> None:
    env = PAIRS[name][0]
    env.load_state_dict(SAVED[name])
    seen = TensorDict(env.observe(), batch_size=[2]).select("item_id", "box_heightmap", "legal_mask", "z_map")
    entry = data.draw(st.sampled_from(["item_id", "item_id", "legal_mask", "box_heightmap", "z_map"]))
    changed = data.draw(perturbed(seen[entry]))
    if changed.is_floating_point() and not changed.isfinite().all():
        return
    try:
        action = VolumeSorted(env, policy(env))(seen.set(entry, changed))["action"]
    # tensordict itself refuses what has not the batch's length.
    except (ValueError, RuntimeError):
        assert changed.dtype != env.observe()[entry].dtype or changed.shape != env.observe()[entry].shape
        return
    assert ((action >= 0) & (action < env.num_actions)).all()


WRONG: list[tuple[str, Callable[[Tensor], Tensor] | None, str]] = []
WRONG.append(("item_id", lambda value: value.int(), "item_id .*int64.*int32"))
WRONG.append(("box_heightmap", lambda value: value.double(), "box_heightmap .*float32.*float64"))
WRONG.append(("box_heightmap", lambda value: value[:, :4], r"box_heightmap .*\(2, 10, 10\).*\(2, 4, 10\)"))
WRONG.append(("legal_mask", lambda value: value.byte(), "legal_mask .*bool.*uint8"))
WRONG.append(("z_map", lambda value: value[..., :4], r"z_map .*\(2, 3, 2, 10, 10\).*\(2, 3, 2, 10, 4\)"))
WRONG.append(("item_id", None, "item_id .*tensor.*none"))


@pytest.mark.parametrize("policy", POLICIES)
def test_heuristics_look_at_what_they_are_given(policy: type) -> None:
    env = PAIRS["three visible"][0]
    for entry, change, message in WRONG:
        seen = TensorDict(env.observe(), batch_size=[2])
        seen = seen.exclude(entry) if change is None else seen.set(entry, change(seen[entry]))
        with pytest.raises(ValueError, match=rf"^{policy.__name__}: {message}$"):
            policy(env)(seen)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_id_that_no_item_has_is_an_empty_slot(policy: type) -> None:
    env = PAIRS["three visible"][0]
    env.load_state_dict(SAVED["three visible"])
    seen = TensorDict(env.observe(), batch_size=[2]).exclude("z_map")
    legal = seen["legal_mask"].clone()
    legal[:, 1] = False
    ids = seen["item_id"].clone()
    actions = []
    for each in (-1, 10**9, 64, -2, -(10**12)):
        ids[:, 1] = each
        actions.append(policy(env)(seen.clone().update({"item_id": ids.clone(), "legal_mask": legal}))["action"])
    assert all(torch.equal(action, actions[0]) for action in actions)
