"""Refined values against bins that were really packed.

Counts are compared with those of the NumPy kernels.
"""

from __future__ import annotations

import copy
import pickle
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from tests.policies.packing.ntuple.test_tables import tables_of, values_in
from tests.training.tiny import packing_env
from torchrl_gpu import native
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.kernels import get_kernels
from torchrl_gpu.policies import AgentSpace, PackingPolicy, RefinedTables
from torchrl_gpu.policies.packing.ntuple import refined
from torchrl_gpu.policies.packing.ntuple.tables import NEVER
from torchrl_gpu.policies.packing.planners.expectation import ExpectedPlacement

environment = partial(packing_env, 4)


def refined_of(env: PackingEnv, candidates: int = 5) -> RefinedTables:
    torch.manual_seed(2)
    made = RefinedTables(AgentSpace.of(env), ("2x2", "1x3"), sides=(1, 3), candidates=candidates, width=16)
    made.weight.copy_(tables_of(env).weight)
    torch.nn.init.normal_(made.network[-1].weight)
    return made.requires_grad_(False)


def played(env: PackingEnv, steps: int = 3) -> Any:
    shown = env.reset()
    for _ in range(steps):
        shown = env.step_and_maybe_reset(env.rand_action(shown))[1]
    return shown


@pytest.mark.parametrize(
    "changes",
    [{}, {"orientations": "axis", "visible_items": 3}, {"bin_size": (1.1, 1.1, 1.1)}, {"grid_step": 2}],
    ids=["boxes", "several items", "rounded", "a coarser grid"],
)
def test_the_best_placements_have_the_values_of_the_bins_that_they_leave(changes: dict[str, Any]) -> None:
    env = environment(**changes)
    tables, shown = refined_of(env), played(env)
    values, by_tables = values_in(tables, shown), values_in(tables_of(env), shown)
    legal = shown["action_mask"]
    assert values.shape == legal.shape
    assert bool((values[~legal] == NEVER).all())
    per_item = by_tables.view(4, env.visible_items, -1)
    # Among equal ones, any will do.
    fifth = per_item.topk(5, 2).values[..., -1:]
    best = (per_item - fifth) * 1 > 0.0001
    worse = (per_item - fifth) * -1 > 0.0001
    best, worse = best.flatten(1) & legal, worse.flatten(1) & legal
    torch.testing.assert_close(values[worse], by_tables[worse] - 1)
    state, checked = env.state_dict(), 0
    for action in best.any(0).nonzero()[:, 0].tolist():
        env.load_state_dict(state)
        after = env.step(shown.clone().set("action", torch.full((4,), action)))["next"]
        wanted = after["reward"][:, 0] + tables.values(tables.levels_of(after["box_heightmap"]))
        rows = best[:, action]
        torch.testing.assert_close(values[rows, action], wanted[rows], rtol=1e-4, atol=1e-4)
        checked += int(rows.sum())
    assert checked > 8


@pytest.mark.parametrize("stability", ["none", "corners", "support", "com"])
@pytest.mark.parametrize("grid_step", [1, 2])
def test_places_are_those_of_the_numpy_kernels(stability: str, grid_step: int) -> None:
    env = environment(stability=stability, grid_step=grid_step)
    tables = refined_of(env)
    levels = torch.randint(0, 6, (3, 5, 5), generator=torch.Generator().manual_seed(4)).to(torch.uint8)
    levels[0] = 0
    counted = tables.places(levels).view(3, 9, refined.LEVELS)
    # Every box of 1 to 3 cells a side, where those of height 1 are the bases.
    boxes = env.catalogue
    size = env.item_sizes[:, 0]
    kernels = get_kernels("reference")
    for base, (x, y) in enumerate(product((1, 2, 3), (1, 2, 3))):
        item = int(((size[:, 0] == x) & (size[:, 1] == y) & (size[:, 2] == 1)).nonzero())
        z, legal = kernels.drop_map(levels.float(), torch.full((3, 1), item), boxes, env.bin)
        for n, level in np.ndindex(3, refined.LEVELS):
            highest = 5 - 1 - refined.LEVELS + 1 + level
            wanted = int((legal[n, 0, 0] & (z[n, 0, 0] <= highest)).sum())
            assert counted[n, base, level] == wanted
    assert counted.max() > 3


def test_torch_counts_as_the_compiled_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment(stability="corners")
    tables, shown = refined_of(env), played(env)
    again = copy.deepcopy(tables)
    levels = tables.levels_of(shown["box_heightmap"].view(4, 5, 5))
    ours = tables.places(levels)
    monkeypatch.setattr(native, "runs_on", lambda tensor: False)
    monkeypatch.setattr(refined, "get_kernels", lambda device: get_kernels("eager", device))
    assert torch.equal(again.places(levels), ours)
    many = refined.count_at_most(torch.zeros(1, 400), torch.ones(1, 400, dtype=torch.bool), [0.0, -1.0])
    assert many.tolist() == [[255, 0]]


def test_a_network_that_has_not_learned_changes_no_choice() -> None:
    env = environment()
    tables, shown = refined_of(env), played(env)
    torch.nn.init.zeros_(tables.network[-1].weight)
    values, by_tables = values_in(tables, shown), values_in(tables_of(env), shown)
    assert torch.equal(values.argmax(1), by_tables.argmax(1))
    torch.testing.assert_close(values.amax(1), by_tables.amax(1))


def test_bins_without_a_place_and_copies() -> None:
    env = environment()
    tables, shown = refined_of(env), env.reset()
    shown["legal_mask"] = torch.zeros_like(shown["legal_mask"])
    assert bool((values_in(tables, shown) == NEVER).all())
    shown = env.reset()
    for other in (copy.deepcopy(tables), pickle.loads(pickle.dumps(tables))):
        assert torch.equal(values_in(other, shown), values_in(tables, shown))


def test_planners_look_ahead_by_refined_values() -> None:
    env = environment(orientations="fixed")
    tables, shown = refined_of(env, candidates=2), played(env)
    planner = ExpectedPlacement(env, tables, candidates=2)
    action = planner(shown.clone())["action"]
    assert bool(shown["action_mask"].gather(1, action[:, None]).all())
    greedy = PackingPolicy(AgentSpace.of(env), tables)(shown.clone())["action"]
    assert action.shape == greedy.shape


@pytest.mark.parametrize(
    ("changes", "given", "message"),
    [
        ({}, {"sides": (3, 1)}, r"sides .*16.*\(3, 1\)"),
        ({}, {"sides": (1, 6)}, "sides must be at most 5; got 6"),
        ({}, {"sides": (1, 3), "levels": 4}, "levels .*as high as cells"),
        ({"bin_size": (5.0, 5.0, 6.0)}, {"sides": (1, 3), "levels": 5}, "levels .*as high as cells"),
        ({}, {"sides": (1, 3), "candidates": 0}, "candidates must be"),
        ({"stability": "load_bearing"}, {"sides": (1, 3)}, "stability .*load_bearing"),
    ],
)
def test_settings_that_are_refused(changes: dict[str, Any], given: dict[str, Any], message: str) -> None:
    space = AgentSpace.of(environment(**changes))
    with pytest.raises(ValueError, match=message):
        RefinedTables(space, ("2x2",), **given)
