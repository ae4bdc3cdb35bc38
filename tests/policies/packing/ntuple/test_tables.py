"""Values of placements by tables, in the environments that they are made for."""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tests.training.tiny import packing_env
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import CutBoxes, RandomBoxes
from torchrl_gpu.policies import AgentSpace, PatchTables
from torchrl_gpu.policies.packing.ntuple.tables import NEVER
from torchrl_gpu.policies.packing.planners import expectation
from torchrl_gpu.policies.packing.planners.expectation import ExpectedPlacement
from torchrl_gpu.policies.packing.planners.next_items import NextItems

environment = partial(packing_env, 4)


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
        # Cells of 10 cm.
        {"bin_size": (0.5, 0.5, 0.5)},
        # Three of these cells over one are a little less than three.
        {"bin_size": (1.1, 1.1, 1.1)},
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
    # Learning makes tensors that are not saved.
    tables.learn(levels, torch.ones(1), torch.ones(1, dtype=torch.bool), 0.5)
    for other in (copy.deepcopy(tables), pickle.loads(pickle.dumps(tables))):
        assert torch.equal(other.values(levels), tables.values(levels))
        other.learn(levels, torch.ones(1), torch.ones(1, dtype=torch.bool), 0.5)
        assert not torch.equal(other.values(levels), tables.values(levels))
    assert set(tables.state_dict()) == {"weight", "drift", "path"}


def test_patches_must_fit_the_bin() -> None:
    with pytest.raises(ValueError, match=r"PatchPlan: .*does not fit"):
        PatchTables(AgentSpace.of(environment()), ["1x8"])
    fine = AgentSpace.of(environment(bin_size=(1.2, 0.8, 1.0), resolution=(12, 8)))
    with pytest.raises(ValueError, match=r"PatchPlan: .*does not fit"):
        # Three patches and the frame.
        PatchTables(fine, ["1x6"], pool=4)
    assert PatchTables(fine, ["2x2"], pool=4).seen == (3, 2)


@pytest.mark.parametrize(("pool", "message"), [(5, "pool must divide"), (0, "pool"), (True, "pool"), (1.5, "pool")])
def test_pools_that_cannot_be(pool: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PatchTables(AgentSpace.of(environment(bin_size=(1.2, 0.8, 1.0), resolution=(12, 8))), ["2x2"], pool=pool)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("orientations", "items", "knows", "foretold"),
    [
        ("fixed", RandomBoxes(1, 3), "the distribution", False),
        ("yaw", RandomBoxes(1, 3), "the distribution", False),
        ("fixed", CutBoxes(1, 3, pool=None), "the distribution", False),
        ("fixed", CutBoxes(1, 3, pool=None), "the distribution", True),
        ("yaw", CutBoxes(1, 3, pool=None), "the boxes but not their order", False),
    ],
    ids=["fixed", "yaw", "cut", "foretold", "known boxes"],
)
def test_the_expectation_of_the_next_item_is_the_mean_over_all_that_can_come(
    orientations: str, items: object, knows: str, foretold: bool
) -> None:
    """Against one candidate and one item after the other.

    Environments are put into that state.
    """
    # This seed gives states in some of which it decides otherwise.
    torch.manual_seed(3)
    env = environment(orientations=orientations, items=items, include=("z_map", "future_items", "packed_items"))
    tables, shown = tables_of(env), env.reset()
    network = NextItems.of(env, ages=3, width=8) if foretold else None
    for _ in range(4):
        shown = env.step_and_maybe_reset(env.rand_action(shown))[1]
    policy = ExpectedPlacement(env, tables, candidates=5, next_items=network, sequences=300, knows=knows)
    wanted = torch.full((4, 27), 1 / 27)
    if knows == "the boxes but not their order":
        rows = []
        for row in shown["future_items"].tolist():
            left = [i for i in row if i >= 0]
            assert len(left) > 1
            rows.append([left.count(i) / len(left) for i in range(27)])
        wanted = torch.tensor(rows)
    elif network is not None:
        # Some items are likely.
        torch.nn.init.normal_(network.layers[-1].weight)
        wanted = network(shown["packed_items"], shown["item_id"][:, 0]).detach().softmax(1)
        shares = policy.shares_after(shown["item_id"][:, 0], shown["packed_items"])
        torch.testing.assert_close(shares, wanted)
    elif isinstance(items, CutBoxes):
        counts = counted(env, 300)
        wanted = torch.stack([following(counts, each) for each in shown.unbind(0)])
        shares = policy.shares_after(shown["item_id"][:, 0], shown["utilization"])
        torch.testing.assert_close(shares, wanted)
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
            heightmap = after["box_heightmap"][row].expand(27, -1, -1).contiguous()
            made = env.restore(TensorDict({"box_heightmap": heightmap, "item_id": torch.arange(27)[:, None]}, [27]))
            best = torch.where(made["action_mask"], values_in(tables, made), -torch.inf).amax(1)
            each = torch.where(made["action_mask"].any(1), best, 0.0)
            ahead = (each * wanted[row]).sum().item()
            scores[action] = after["reward"][row].item() + ahead
        # Some are worth the same but for rounding.
        assert scores[chosen[row].item()] > max(scores.values()) - 1e-4
        changed += chosen[row].item() != values[row].argmax().item()
    assert changed > 0


@pytest.mark.parametrize("items", [RandomBoxes(1, 3), CutBoxes(1, 3, pool=None)], ids=["random", "cut"])
def test_the_better_half_of_the_placements_meets_more_futures(items: object) -> None:
    """Against one candidate and one future after the other.

    Environments are put into that state.
    """
    torch.manual_seed(6)
    env = environment(items=items, include=("z_map", "packed_items"))
    tables, shown = tables_of(env), env.reset()
    for _ in range(8):
        shown = env.step_and_maybe_reset(env.rand_action(shown))[1]
    policy = ExpectedPlacement(env, tables, candidates=4, futures=6, depth=3, sequences=300)
    assert [len(each) for each in policy.draws] == [2, 4]
    known = [] if isinstance(items, RandomBoxes) else [shown["utilization"]]
    futures = [policy.draw_futures(each, shown["item_id"][:, 0], *known).tolist() for each in policy.draws]
    few, more = futures
    chosen = policy(shown.clone())["action"].tolist()
    state, values = env.state_dict(), values_in(tables, shown)
    changed = played = 0
    for row in range(env.num_envs):
        after: dict[int, Tensor] = {}
        for action in values[row].topk(4).indices.tolist():
            if shown["action_mask"][row, action]:
                env.load_state_dict(state)
                stepped = env.step(shown.clone().set("action", torch.full((env.num_envs,), action)))["next"]
                after[action] = stepped["box_heightmap"][row]
        totals = {action: total_of(env, tables, after[action], few[row]) for action in after}
        third = sorted([-1e9, -1e9, *totals.values()])[-3]
        kept = [action for action, total in totals.items() if total > third]
        if min(totals[action] for action in kept) < third + 1e-4:
            # In mirrored bins rounding decides which line continues.
            continue
        totals = {action: totals[action] + total_of(env, tables, after[action], more[row]) for action in kept}
        assert totals[chosen[row]] > max(totals.values()) - 1e-4
        changed += chosen[row] != values[row].argmax().item()
        played += 1
    assert 0 < changed <= played
    assert played > 1


def total_of(env: PackingEnv, tables: PatchTables, heightmap: Tensor, futures: list[list[int]]) -> float:
    return sum(returned(env, tables, heightmap, each) for each in futures)


def returned(env: PackingEnv, tables: PatchTables, heightmap: Tensor, items: list[int]) -> float:
    """λ-return of items of which each is placed where tables value it most."""
    filled, returns = 0.0, []
    for item in items:
        shown = env.restore(TensorDict({"box_heightmap": heightmap[None], "item_id": torch.tensor([[item]])}, [1]))
        if not shown["action_mask"].any():
            returns += [filled] * (len(items) - len(returns))
            break
        values = torch.where(shown["action_mask"], values_in(tables, shown), -torch.inf)
        returns.append(filled + values.max().item())
        turn, x, y = np.unravel_index(int(values.argmax()), shown["z_map"].shape[-3:])
        wide, long, high = shown["item_size"][0, 0, turn, :3].round().int().tolist()
        heightmap = heightmap.clone()
        heightmap[x : x + wide, y : y + long] = shown["z_map"][0, 0, turn, x, y] + high
        filled += wide * long * high / 125
    return sum(0.2 * 0.8**n * each for n, each in enumerate(returns[:-1])) + 0.8 ** len(returns[:-1]) * returns[-1]


def test_a_future_for_each_item_is_the_exact_expectation() -> None:
    env = environment(include=("z_map", "packed_items"))
    tables, shown = tables_of(env), env.reset()
    for _ in range(4):
        shown = env.step_and_maybe_reset(env.rand_action(shown))[1]
    policy, heightmap = ExpectedPlacement(env, tables, 2, futures=27), shown["box_heightmap"]
    (draws,) = policy.draws
    futures = policy.draw_futures(draws, shown["item_id"][:, 0])
    assert futures.flatten(1).sort(1).values.tolist() == [[*range(27)]] * 4
    exact = policy.values_ahead(heightmap, torch.ones(4, 1, 27)).mean(2)
    torch.testing.assert_close(policy.returns_of(heightmap[:, None], futures).mean(2), exact)


@pytest.mark.parametrize(
    ("candidates", "futures", "parts"),
    [(1, 9, [9]), (2, 9, [9]), (3, 9, [3, 6]), (8, 70, [10, 20, 40]), (8, 1, [1]), (9, 150, [10, 20, 40, 80])],
)
def test_futures_are_shared_out_over_halvings(candidates: int, futures: int, parts: list[int]) -> None:
    draws = expectation.latin_draws(candidates, futures, 3)
    assert [len(each) for each in draws] == parts
    for each in draws:
        middles = (torch.arange(len(each)) + 0.5) / len(each)
        torch.testing.assert_close(each.sort(0).values, middles[:, None].expand(-1, 3))


def test_futures_go_on_from_what_came() -> None:
    """Items are as likely as the network says.

    After those that came and those drawn before.
    """
    env = environment(items=CutBoxes(1, 3, pool=None), include=("z_map", "packed_items"))
    network = NextItems.of(env, ages=3, width=8)
    torch.nn.init.normal_(network.layers[-1].weight, generator=torch.Generator().manual_seed(1))
    policy = ExpectedPlacement(env, tables_of(env), 2, futures=400, depth=3, next_items=network)
    (draws,) = policy.draws
    item, packed = torch.tensor([5, 7]), torch.full((2, 9), -1)
    packed[1, :2] = torch.tensor([3, 26])
    futures = policy.draw_futures(draws, item, packed)  # (2, 400, 3)
    shares = network(packed, item).softmax(1)
    counts = torch.stack([each.bincount(minlength=27) for each in futures[..., 0]])
    # Parts of the probability are equal.
    assert (counts - 400 * shares).abs().max() <= 1
    first = futures[1, :, 0].mode().values
    after = torch.tensor([[3, 26, 7, *[-1] * 6]])
    shares = network(after, first[None]).softmax(1)[0]
    second = futures[1, futures[1, :, 0] == first, 1]
    error = (len(second) * shares * (1 - shares)).sqrt() + 1
    assert ((second.bincount(minlength=27) - len(second) * shares).abs() < 4 * error).all()
    assert torch.equal(policy.draw_futures(draws, item, packed), futures)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 2}, "depth 2 .*futures"),
        ({"futures": 0}, "futures must be at least 1; got 0"),
        ({"futures": 4, "depth": 0}, "depth must be at least 1; got 0"),
        ({"futures": 4, "knows": "the boxes but not their order"}, "futures are drawn from the distribution"),
    ],
)
def test_futures_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    env = environment(include=("z_map", "future_items"))
    with pytest.raises(ValueError, match=message):
        ExpectedPlacement(env, tables_of(env), **changes)


def test_the_visible_item_is_part_of_what_has_come() -> None:
    env = environment(items=CutBoxes(1, 3, pool=None), include=("z_map",))
    policy = ExpectedPlacement(env, tables_of(env), sequences=300)
    # 27 and 1 of 125 cells.
    large, small = env.catalogue.volume.argmax(), env.catalogue.volume.argmin()
    shares = policy.shares_after(torch.stack([large, small, large]), torch.tensor([[0.0], [0.0], [0.5]]))
    counted = policy.sequence_shares
    assert counted is not None
    wanted = [counted[12 * 27 // 125, large], counted[0, small], counted[int(12 * (0.5 + 27 / 125)), large]]
    assert torch.equal(shares, torch.stack(wanted))
    assert not torch.equal(counted[0, large], wanted[0])


def counted(env: PackingEnv, sequences: int) -> Tensor:
    """Counts of (fill, item, next item) in sequences, one after the other."""
    cut: Any = env.item_sequences
    counts = torch.zeros(12, 27, 27)
    which = torch.arange(sequences)
    for row in cut.rows(cut.begin(expectation.SEED, which, 0 * which)).tolist():
        came = 0
        for last, after in pairwise(row):
            if after < 0:
                break
            came += round(env.catalogue.volume[last].item())
            counts[12 * came // 125, last, after] += 1
    return counts


def following(counts: Tensor, shown: TensorDictBase) -> Tensor:
    """Shares (27,) of next items where one item is visible."""
    last = shown["item_id"].item()
    came = round(125 * shown["utilization"].item()) + math.prod(shown["item_size"][0, 0, :3].round().tolist())
    here = counts[int(12 * came // 125)]
    found = here[last] + 20 * here.sum(0) / here.sum()
    return found / found.sum()


def test_expected_placement_refuses_what_it_cannot_expect() -> None:
    env = environment(items="cut", include=("z_map",))
    with pytest.raises(ValueError, match=r"ExpectedPlacement: .*RandomBoxes or"):
        ExpectedPlacement(env, tables_of(env))
    env = environment(items=CutBoxes(1, 3, pool=None), include=("z_map", "packed_items"))
    with pytest.raises(ValueError, match=r"ExpectedPlacement: next_items .*27 .*26"):
        ExpectedPlacement(env, tables_of(env), next_items=NextItems(26))
    with pytest.raises(ValueError, match=r"next_items .*layers .*\(9, 1048576\)"):
        ExpectedPlacement(env, tables_of(env), next_items=NextItems(27, 1, 1, layer_cells=(9, 2**20)))
    env = environment(items=CutBoxes(1, 3, pool=None), include=("z_map",))
    with pytest.raises(ValueError, match=r"next_items .*packed_items"):
        ExpectedPlacement(env, tables_of(env), next_items=NextItems(27))
