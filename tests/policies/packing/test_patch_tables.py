"""Values of placements by tables, in the environments that they are made for."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.policies import AgentSpace, PatchTables
from torchrl_gpu.policies.packing.expectation import ExpectedPlacement
from torchrl_gpu.policies.packing.patch_tables import NEVER


def environment(**changes: object) -> PackingEnv:
    settings = {"items": RandomBoxes(1, 3), "bin_size": (5.0, 5.0, 5.0), "resolution": 5, "seed": 3, "device": "cpu"}
    return PackingEnv(4, **settings | changes)  # type: ignore[arg-type]


def tables_of(env: PackingEnv, *patches: str, pool: int = 1) -> PatchTables:
    made = PatchTables(AgentSpace.of(env), patches or ("2x2", "1x3"), initial=0.0, pool=pool)
    drawn = torch.randn(made.plan.entries, generator=torch.Generator().manual_seed(1))
    made.weight.copy_(drawn[made.plan.first_images])
    return made


def values_in(tables: PatchTables, shown: object) -> Tensor:
    return tables(*(shown.get(key) for key in tables.in_keys))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"orientations": "axis", "visible_items": 3},
        {"bin_size": (0.5, 0.5, 0.5)},  # cells of 10 cm
        {"bin_size": (1.1, 1.1, 1.1)},  # where three of them over one are a little less than three
        {"grid_step": 2},
        {"resolution": (5, 10), "orientations": "fixed"},
        {"bin_size": (1.2, 0.8, 1.0), "resolution": (12, 8), "items": RandomBoxes(2, 5), "grid_step": 3, "pool": 4},
    ],
    ids=[
        "boxes",
        "several items, six orientations",
        "metres",
        "rounded",
        "a coarser grid",
        "cells that are not square",
        "pools",
    ],
)
def test_a_placement_is_worth_its_gain_and_the_bin_that_it_leaves(changes: dict[str, object]) -> None:
    pool = int(str(changes.get("pool", 1)))
    env = environment(**{name: value for name, value in changes.items() if name != "pool"})
    tables, shown = tables_of(env, pool=pool), env.reset()
    for _ in range(3):
        shown = env.step_and_maybe_reset(env.rand_action(shown))[1]
    values = values_in(tables, shown)
    assert values.shape == (4, env.num_actions)
    state, checked = env.state_dict(), 0
    for action in range(env.num_actions):
        legal = shown["action_mask"][:, action]
        assert bool((values[~legal, action] == NEVER).all())
        if not bool(legal.any()):
            continue
        env.load_state_dict(state)
        after = env.step(shown.clone().set("action", torch.full((4,), action)))["next"]
        wanted = after["reward"][:, 0] + tables.values(tables.levels_of(after["box_heightmap"]))
        torch.testing.assert_close(values[legal, action], wanted[legal], rtol=1e-4, atol=1e-4)
        checked += int(legal.sum())
    assert checked > 20


def test_every_bin_begins_at_what_was_asked_for() -> None:
    env = environment()
    tables = PatchTables(AgentSpace.of(env), initial=0.75)
    levels = torch.randint(0, 6, (8, 5, 5), dtype=torch.uint8)
    torch.testing.assert_close(tables.values(levels), torch.full((8,), 0.75))


def test_high_bins_are_read_by_ten_levels() -> None:
    env = environment(bin_size=(5.0, 5.0, 40.0))
    assert PatchTables(AgentSpace.of(env), ["2x2"]).plan.levels == 10
    assert PatchTables(AgentSpace.of(env), ["2x2"], levels=20).plan.levels == 20
    assert PatchTables(AgentSpace.of(environment()), ["2x2"]).plan.levels == 5


def test_copies_are_whole() -> None:
    tables = tables_of(environment())
    levels = torch.zeros(1, 5, 5, dtype=torch.uint8)
    tables.learn(levels, torch.ones(1), torch.ones(1, dtype=torch.bool), 0.5)  # makes what is not saved
    for other in (copy.deepcopy(tables), pickle.loads(pickle.dumps(tables))):
        assert torch.equal(other.values(levels), tables.values(levels))
        other.learn(levels, torch.ones(1), torch.ones(1, dtype=torch.bool), 0.5)
        assert not torch.equal(other.values(levels), tables.values(levels))
    assert set(tables.state_dict()) == {"weight", "drift", "path"}


def test_patches_must_fit_the_bin() -> None:
    with pytest.raises(ValueError, match="PatchPlan: want patches that fit a bin of"):
        PatchTables(AgentSpace.of(environment()), ["1x8"])
    fine = AgentSpace.of(environment(bin_size=(1.2, 0.8, 1.0), resolution=(12, 8)))
    with pytest.raises(ValueError, match="PatchPlan: want patches that fit a bin of"):
        PatchTables(fine, ["1x6"], pool=4)  # three of them and the frame
    assert PatchTables(fine, ["2x2"], pool=4).seen == (3, 2)


@pytest.mark.parametrize(("pool", "message"), [(5, "pool must divide"), (0, "pool"), (True, "pool"), (1.5, "pool")])
def test_pools_that_cannot_be(pool: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PatchTables(AgentSpace.of(environment(bin_size=(1.2, 0.8, 1.0), resolution=(12, 8))), ["2x2"], pool=pool)  # type: ignore[arg-type]


@pytest.mark.parametrize("orientations", ["fixed", "yaw"])
def test_the_expectation_of_the_next_item_is_the_mean_over_all_that_can_come(orientations: str) -> None:
    """One candidate and one item after the other, in environments that are put into that state."""
    torch.manual_seed(3)  # gives states in some of which it decides otherwise
    env = environment(orientations=orientations, include=("z_map",))
    tables, shown = tables_of(env), env.reset()
    for _ in range(4):
        shown = env.step_and_maybe_reset(env.rand_action(shown))[1]
    policy = ExpectedPlacement(env, tables, candidates=5)
    chosen = policy(shown.clone())["action"]
    state, values = env.state_dict(), values_in(tables, shown)
    changed = 0
    for row in range(env.num_envs):
        scores = {}
        for action in values[row].topk(5).indices.tolist():
            if not shown["action_mask"][row, action]:
                continue
            env.load_state_dict(state)
            after = env.step(shown.clone().set("action", torch.full((env.num_envs,), action)))["next"]
            heightmap, ahead = after["box_heightmap"][row].expand(27, -1, -1).contiguous(), 0.0
            made = env.restore(TensorDict({"box_heightmap": heightmap, "item_id": torch.arange(27)[:, None]}, [27]))
            best = torch.where(made["action_mask"], values_in(tables, made), -torch.inf).amax(1)
            ahead = torch.where(made["action_mask"].any(1), best, 0.0).mean().item()
            scores[action] = after["reward"][row].item() + ahead
        assert chosen[row].item() == max(scores, key=lambda each: scores[each])
        changed += chosen[row].item() != values[row].argmax().item()
    assert changed > 0


def test_what_cannot_be_expected() -> None:
    env = environment(items="cut", include=("z_map",))
    with pytest.raises(ValueError, match="ExpectedPlacement: want an environment of RandomBoxes"):
        ExpectedPlacement(env, tables_of(env))
