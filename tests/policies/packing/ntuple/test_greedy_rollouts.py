"""Whole rollouts in C++ have the bits of single steps.

Settings that C++ does not cover are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import CutBoxes, ProceduralSolids, RandomBoxes
from torchrl_gpu.policies import PackingPolicy, PatchTables, RefinedTables
from torchrl_gpu.policies.packing.ntuple.greedy_rollouts import GREEDY_ROLLOUTS
from torchrl_gpu.policies.packing.placement_values import NAMES, LinearPlacementValues
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.training.collect.graphed import play_steps

pytestmark = pytest.mark.skipif(bool(native.problem()), reason="no C++ compiler")

KEPT = ["box_heightmap"], ["action"], ["reward", "done", "terminated", "utilization"]
CUT = CutBoxes(2, 5, order="stack", pool=None)
LAYERS = CutBoxes(1, 3, order="layers", pool=None)
POOL = CutBoxes(2, 5, pool=7)
SMALL = RandomBoxes(1, 3)
MIXED = RandomBoxes(2, 4)
LARGE = RandomBoxes(2, 9)
LITTLE = {"bin_size": (4.0, 4.0, 4.0), "resolution": 4}
WIDE = {"bin_size": (12.0, 8.0, 10.0), "resolution": (24, 16), "grid_step": 3}

SETTINGS: dict[str, dict[str, Any]] = {
    "as packing.yaml": {"items": CUT, "orientations": "fixed", "stability": "corners"},
    "no rule": {"items": CUT},
    "support": {"items": CUT, "stability": "support"},
    "com": {"items": MIXED, "stability": "com"},
    "layers": {"items": LAYERS, "bin_size": (6.0, 6.0, 6.0), "resolution": 6, "stability": "corners"},
    "pool": {"items": POOL, "stability": "support"},
    "one item an episode": {"items": POOL, "num_items": 1},
    "short episodes": {"items": MIXED, "num_items": 5, "visible_items": 3},
    "visible items": {"items": MIXED, "visible_items": 4, "stability": "corners"},
    "all turns": {"items": SMALL, "visible_items": 2, "orientations": "cube", "stability": "com", **LITTLE},
    "long bin": {"items": LARGE, "orientations": "cube", **WIDE},
    "copies": {"items": MIXED, "copy_observations": True, "include": ["z_map", "future_items", "packed_items"]},
    "numbers of environments": {"items": MIXED, "first_env": 2**40 + 3, "seed": 2**50 + 7},
    "a stack of visible items": {"items": CUT, "visible_items": 2, "num_items": 9, "stability": "corners"},
}
TABLES: dict[str, dict[str, Any]] = {"long bin": {"pool": 4, "levels": 10, "patches": ["2x2", "3x3:1"]}}


def environment(num_envs: int = 5, **changes: Any) -> PackingEnv:
    return PackingEnv(num_envs, **{"seed": 3, "device": "cpu", "include": ["z_map"]} | changes)


def policy_of(env: PackingEnv, **changes: Any) -> PackingPolicy:
    """Greedy tables of random weights.

    Values are seldom the same and never in order.
    """
    space = AgentSpace.of(env)
    tables = PatchTables(space, **{"patches": ["2x2", "1x4", "2x3", "2x4:2"]} | changes)
    drawn = torch.randn(len(tables.weight), generator=torch.Generator().manual_seed(0))
    tables.weight.copy_(1e-3 * drawn)
    return PackingPolicy(space, tables)


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def by_steps(env: PackingEnv, policy: PackingPolicy, current: TensorDictBase, steps: int) -> Any:
    return play_steps(env, policy, current, steps, *KEPT)


def played(play: Any, env: PackingEnv, policy: PackingPolicy, lengths: tuple[int, ...]) -> list[dict[Any, Tensor]]:
    """Return all that rollouts of some lengths give, one after the other.

    And the state after each.
    """
    assert GREEDY_ROLLOUTS.problem(env, policy, KEPT[0], [*KEPT[1], *KEPT[2]]) == ""
    current = env.reset()
    current["note"] = torch.arange(env.num_envs)
    found: list[dict[Any, Tensor]] = []
    for steps in lengths:
        kept, current = play(env, policy, current, steps)
        for given in (dict(kept.items(True, True)), dict(current.items(True, True)), env.state_dict()):
            copy: dict[Any, Tensor] = {key: value.clone() for key, value in given.items()}
            found.append(copy)
    return found


def assert_same_bits(found: list[dict[Any, Tensor]], wanted: list[dict[Any, Tensor]]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            same = ours[name]
            assert (same.dtype, same.shape) == (value.dtype, value.shape), name
            if value.is_floating_point():
                same, value = same.contiguous().view(torch.int32), value.contiguous().view(torch.int32)
            assert torch.equal(same, value), name


@pytest.mark.parametrize("name", SETTINGS)
def test_a_whole_rollout_has_the_bits_of_single_steps(name: str) -> None:
    made = [environment(**SETTINGS[name]) for _ in range(2)]
    policies = [policy_of(env, **TABLES.get(name, {})) for env in made]
    lengths = (1, 9, 14)
    wanted = played(by_steps, made[0], policies[0], lengths)
    assert_same_bits(played(GREEDY_ROLLOUTS.play, made[1], policies[1], lengths), wanted)
    assert any(each["next", "done"].any() for each in wanted[::3]), "no episode has ended"


def test_the_number_of_threads_changes_nothing() -> None:
    found = []
    for number in (1, 2, 3):
        with threads(number):
            env = environment(33, **SETTINGS["as packing.yaml"])
            found.append(played(GREEDY_ROLLOUTS.play, env, policy_of(env), (12,)))
    assert_same_bits(found[1], found[0])
    assert_same_bits(found[2], found[0])


def test_a_rollout_goes_on_from_a_loaded_state() -> None:
    env = environment(**SETTINGS["visible items"])
    other = environment(**SETTINGS["visible items"])
    policy = policy_of(env)
    _, current = by_steps(env, policy, env.reset(), 7)
    other.load_state_dict(env.state_dict())
    wanted = by_steps(env, policy, current.clone(), 9)
    found = GREEDY_ROLLOUTS.play(other, policy, current, 9)
    for ours, theirs in zip(found, wanted, strict=True):
        assert_same_bits([dict(ours.items(True, True))], [dict(theirs.items(True, True))])


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -float("inf"), 3e38, 0.0])
def test_odd_weights_choose_the_same_actions(weight: float) -> None:
    """The first placement wins where values are odd.

    They are equal, not a number, or too large; zeros are equal everywhere.
    """
    found = []
    for play in (by_steps, GREEDY_ROLLOUTS.play):
        env = environment(**SETTINGS["as packing.yaml"])
        policy = policy_of(env)
        policy.tables.weight[:] = 0.0
        policy.tables.weight[::3] = weight
        found.append(played(play, env, policy, (12,)))
    assert torch.equal(found[1][0]["action"], found[0][0]["action"])
    assert torch.equal(found[1][0]["next", "box_heightmap"], found[0][0]["next", "box_heightmap"])


def test_bins_without_a_legal_placement_begin_again() -> None:
    """A bin without a legal placement begins again.

    No item is left, as in a state that was written by hand: the action is 0 and nothing is placed.
    """
    found = []
    for play in (by_steps, GREEDY_ROLLOUTS.play):
        env = environment(items=MIXED, visible_items=2, num_items=6)
        current = env.reset()
        nothing = {"item_id": torch.full((5, 2), -1), "legal": torch.zeros_like(env.state.legal)}
        env.load_state_dict(env.state_dict() | nothing)
        current.update({"legal_mask": env.state.legal, "action_mask": env.state.legal.flatten(1)})
        current.update({"z_map": env.state.z_map, "item_id": env.state.item_id, "item_size": torch.zeros(5, 2, 2, 4)})
        kept, shown = play(env, policy_of(env), current, 9)
        found.append([dict(each.items(True, True)) for each in (kept, shown)])
    assert_same_bits(found[1], found[0])
    assert found[0][0]["next", "done"][:, 0].all()
    assert not found[0][0]["next", "reward"][:, 0].any()


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("stability", {"stability": "load_bearing"}),
        ("fallback", {"stability": "corners", "fallback": "none"}),
        ("reward", {"reward": "objective"}),
        ("stability_judge", {"stability_judge": "com"}),
        ("skip_unplaceable", {"skip_unplaceable": True}),
        ("SortedSequences", {"order": "volume"}),
        ("eager", {"backend": "eager"}),
        ("PackingEnv of boxes", {"items": ProceduralSolids(num_objects=3), "bin_size": (0.2, 0.2, 0.2)}),
    ],
)
def test_settings_that_greedy_rollouts_lack_are_named(named: str, changes: dict[str, Any]) -> None:
    env, boxes = environment(**{"items": MIXED} | changes), environment(items=MIXED)
    assert named in GREEDY_ROLLOUTS.problem(env, policy_of(boxes), *KEPT[:2])


def test_policies_that_are_not_covered_are_named() -> None:
    env = environment(items=SMALL)
    space = AgentSpace.of(env)
    refined = RefinedTables(space, ["2x2"], sides=(1, 3), candidates=3, width=8)
    weighted = LinearPlacementValues(space, [0.0] * len(NAMES))
    for tables in (refined, weighted):
        assert "PatchTables" in GREEDY_ROLLOUTS.problem(env, PackingPolicy(space, tables), *KEPT[:2])
    assert "PatchTables" in GREEDY_ROLLOUTS.problem(env, lambda shown: shown, *KEPT[:2])
    assert "legal_mask" in GREEDY_ROLLOUTS.problem(env, policy_of(env), ["legal_mask"], [])
    other = environment(items=SMALL, bin_size=(10.0, 10.0, 8.0))
    assert "8.0" in GREEDY_ROLLOUTS.problem(env, policy_of(other), *KEPT[:2])
