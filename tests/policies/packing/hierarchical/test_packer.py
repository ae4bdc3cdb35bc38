"""The hierarchical packer.

Against a naive twin, against the rules that it adds to, and the laws of its choices.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.no_host_reads import NoHostReads
from tests.policies.packing import naive
from tests.policies.packing.packer_scenes import ENVS, narrow, random_states, solids_env, trained, variants_of
from tests.tolerances import assert_near
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.packing import HeightmapMinimization, HierarchicalPacker, PackerNetworks
from torchrl_gpu.policies.packing.hierarchical.packer import PICKS, PLACES

# 12.8 and 2.2 cells: no sum of whole cells is at the limit.
MARGIN = {"solids": 0.002, "boxes": 0.005}
DECISION = ("action", "slot", "variant", "place")


def packer(env: PackingEnv, networks: PackerNetworks | None = None, **changes: Any) -> HierarchicalPacker:
    return HierarchicalPacker(env, networks or trained(), **{"view_cells": 8, **changes})


Grown = dict[int, dict[int, float]]


def states(env: PackingEnv) -> list[TensorDictBase]:
    """Nearly empty bins, and ones in which items no longer fit."""
    return [random_states(env, steps) for steps in (1, 7)]


@cache
def scenes(kind: str) -> tuple[PackingEnv, list[tuple[TensorDictBase, list[Grown]]]]:
    env = ENVS[kind]()
    found = []
    for state in states(env):
        rows = [grown(env, row) for row in state]
        found.append((state, rows))
    return env, found


def grown(env: PackingEnv, row: TensorDictBase) -> Grown:
    """Return by how much each placement of an item raises the pile.

    In bin volumes, by slot and action.
    """
    per_item, found = row["legal_mask"][0].numel(), defaultdict(dict)
    for candidate in naive.candidates(env, row):
        rise = (candidate.after.astype(np.float64) - candidate.before).sum() * env.bin.cell_area
        found[candidate.action // per_item][candidate.action] = rise / env.bin.volume
    return found


# -- against the naive twin -------------------------------------------------------------------------------------------


class NaivePacker:
    """The packer, one bin, one item and one placement at a time.

    It shares networks and planes with the other, and nothing else.
    """

    def __init__(self, env: PackingEnv, packer: HierarchicalPacker) -> None:
        self.env = env
        self.packer = packer
        self.networks = packer.networks

    def slot(self, row: TensorDictBase, grown: Grown) -> int:
        """Return the item of the best score among those that fit.

        The first of equals.
        """
        fits = [k for k, legal in enumerate(row["legal_mask"]) if legal.any()]
        return max(fits, key=lambda k: (self.item_score(row, k, grown), -k), default=0)

    def item_score(self, row: TensorDictBase, k: int, grown: Grown) -> float:
        item = row["item_id"][k]
        p, q = self.env.catalogue.extent[item, 0].tolist()
        volume = p * q * self.env.catalogue.height[item, 0].item() * self.env.bin.cell_area
        box = volume / self.env.bin.volume
        if self.packer.items == "box":
            # Rounding makes equal boxes equal.
            return round(box, 6)
        waste = min(grown[k].values()) - float(self.env.catalogue.volume[item] / self.env.bin.volume)
        if self.packer.items == "waste":
            return round(box - 0.5 * waste, 6)
        views = self.packer.views(row["box_heightmap"][None], item[None, None])
        return float(self.networks.score_items(views, torch.tensor([[box]]), torch.tensor([[waste]])))

    def placements(self, row: TensorDictBase, slot: int, growth: dict[int, float]) -> dict[int, float]:
        """Scores of the item's placements within the margin, by action."""
        per_item = row["legal_mask"][0].numel()
        near = {a: g for a, g in growth.items() if g <= min(growth.values()) + self.packer.margin}
        if self.packer.places == "growth":
            return {action: -rise for action, rise in near.items()}
        scores = self.worker_scores(row, slot)
        return {action: float(scores[action - slot * per_item]) for action in near}

    def worker_scores(self, row: TensorDictBase, slot: int) -> Tensor:
        heightmap = row["box_heightmap"][None]
        planes = self.packer.planes
        made = []
        for orientation in range(self.env.num_orientations):
            variant = row["item_id"][slot, None, None] * self.env.num_orientations + orientation
            z_map = row["z_map"][None, slot, orientation, None]
            legal = row["legal_mask"][None, slot, orientation, None]
            growth = planes.growth(heightmap, variant, z_map)
            made.append(self.networks.score_places(planes(heightmap, variant, z_map, legal, growth), growth))
        return torch.cat(made).flatten()


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("items", PICKS)
@pytest.mark.parametrize("kind", ENVS)
@torch.no_grad()
def test_agrees_with_the_naive_twin(kind: str, items: str, places: str) -> None:
    env, known = scenes(kind)
    policy = packer(env, items=items, places=places, margin=MARGIN[kind])
    twin, compared = NaivePacker(env, policy), 0
    for state, all_grown in known:
        state = state.clone()
        # A draw from one item gives that one.
        if items == "random":
            only = torch.nn.functional.one_hot(state["item_mask"].int().argmax(1), env.visible_items).bool()
            state["item_mask"] &= only
            state["legal_mask"] &= only[..., None, None, None]
        chosen = policy(state.clone())
        decided = zip(state, all_grown, chosen["slot"].tolist(), chosen["action"].tolist(), strict=True)
        for row, growth, slot, action in decided:
            assert slot == (twin.slot(row, growth) if items != "random" else int(row["item_mask"].int().argmax()))
            scores = twin.placements(row, slot, growth[slot])
            # The action is legal, and within the margin.
            assert action in scores
            assert scores[action] >= max(scores.values()) - 1e-5
            compared += len(scores)
    # More often than not there is a choice between several.
    assert compared > 2 * 4 * 2


@pytest.mark.parametrize("kind", ENVS)
@torch.no_grad()
def test_maps_made_again_give_the_same_scores(kind: str) -> None:
    env = ENVS[kind]()
    policy, state = packer(env), random_states(env, 5)
    heightmap, variants = state["box_heightmap"], variants_of(env, state["item_id"])
    maps, legal = state["z_map"].flatten(1, 2), state["legal_mask"].flatten(1, 2)
    growth = policy.planes.growth(heightmap, variants, maps)
    known = policy.networks.score_places(policy.planes(heightmap, variants, maps, legal, growth), growth)
    assert_near(policy.scores_of(heightmap, variants), known)
    assert_near(policy.scores_of(heightmap, variants[:, 1:2]), known[:, 1:2])


@torch.no_grad()
def test_the_best_advantage_is_chosen_by_one_and_told_by_the_other() -> None:
    env = solids_env(backend="eager")
    online, targets = trained(0), trained(1)
    policy, state = packer(env, online), random_states(env, 4)
    chosen = policy(state.clone())
    row = torch.arange(4)
    item = state["item_id"][row, chosen["slot"]]
    told = packer(env, targets).scores_of(state["box_heightmap"], chosen["variant"][:, None]).flatten(1)
    expected = told.gather(1, chosen["place"][:, None])[:, 0] + targets.slope * chosen["least"]
    with NoHostReads():
        found = policy.best_advantage(state["box_heightmap"], item, targets)
    assert_near(found, expected)


@torch.no_grad()
def test_scores_are_the_rules_and_what_the_networks_add() -> None:
    networks, generator = trained(), torch.Generator().manual_seed(3)
    planes = torch.rand((2, 3, 18, 5, 6), generator=generator)
    growth = torch.rand((2, 3, 5, 6), generator=generator)
    added = [networks.worker(image[None]) + networks.linear(image[None])[:, 0] for image in planes.flatten(0, 1)]
    scores = networks.score_places(planes, growth)
    # Scores are in points of J.
    assert_near(scores, torch.cat(added).view(2, 3, 5, 6) / 100 - networks.slope * growth)
    views = torch.rand((2, 3, 7, 8, 8), generator=generator)
    box = torch.rand((2, 3), generator=generator)
    waste = torch.rand((2, 3), generator=generator)
    added = [networks.manager(image[None]) for image in views.flatten(0, 1)]
    rule = networks.box_slope * box - networks.waste_slope * waste
    assert_near(networks.score_items(views, box, waste), torch.cat(added).view(2, 3) / 100 + rule)


def test_figures_of_a_state_by_hand() -> None:
    # A bin of 8×7 cells and 8 m. A pile of 2 m on 14 of the 56 cells: in bin heights mean 1/16, highest 1/4, deviation
    # √(14·(3/16)² + 42·(1/16)²) / √55. Two of three slots hold boxes, of 1×2×4 and 2×2×2 cells.
    env = ENVS["boxes"](1)
    heightmap = torch.zeros(1, 8, 7)
    heightmap[:, :2] = 2.0
    sides = torch.cat([env.catalogue.extent[:, 0], env.catalogue.height[:, :1].long()], 1).tolist()
    item_id = torch.tensor([[sides.index([1, 2, 4]), sides.index([2, 2, 2]), -1]])
    found = packer(env).state_features(heightmap, item_id, torch.tensor([[0.25]]), torch.tensor([[5]]))
    deviation, box = math.sqrt((14 * (3 / 16) ** 2 + 42 / 16**2) / 55), 8 / 448
    wanted = [1 / 16, 1 / 4, deviation, 0.25, 0.1, 2 / 3, 2 * box, 2 * box, 10 * box, 0.0]
    assert_near(found, torch.tensor([wanted]))


# -- untrained it is the rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENVS)
@torch.no_grad()
def test_untrained_it_is_the_largest_box_and_heightmap_minimisation(kind: str) -> None:
    env = ENVS[kind]()
    policy, rule = packer(env, narrow()), HeightmapMinimization(env)
    cubic = env.bin.cell_area / env.bin.volume
    for state in states(env):
        chosen = policy(state.clone())
        row, slot = torch.arange(4), chosen["slot"]
        box = torch.where(state["item_mask"], env.catalogue.box_volume(env.bin)[state["item_id"]], -1.0)
        assert torch.equal(slot, box.argmax(1))
        alone = {key: state[key][row, slot][:, None] for key in ("item_id", "z_map", "legal_mask")}
        alone["box_heightmap"] = state["box_heightmap"]
        theirs = rule(TensorDict(alone, batch_size=[4]))["action"]
        growth = env.kernels.pile_growth(
            state["box_heightmap"], alone["item_id"], alone["z_map"], env.catalogue, env.bin
        )
        ours = chosen["action"] - slot * growth[0].numel()
        raised = [growth.flatten(1).gather(1, action[:, None]) * cubic for action in (ours, theirs)]
        assert_near(*raised)


# -- laws of its choices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exploring", [False, True])
@pytest.mark.parametrize("items", PICKS)
@pytest.mark.parametrize("kind", ENVS)
@torch.no_grad()
def test_packer_writes_one_decision_and_reads_nothing_back(kind: str, items: str, exploring: bool) -> None:
    env = ENVS[kind](6, backend="eager")
    policy = exploring_packer(env, items=items) if exploring else packer(env, items=items)
    with set_exploration_type(ExplorationType.RANDOM if exploring else ExplorationType.DETERMINISTIC):
        for state in states(env):
            with NoHostReads():
                chosen = policy(state.clone())
            decided = [chosen[key] for key in DECISION]
            action, slot, variant, place = decided
            assert all(chosen[key].dtype == torch.int64 for key in DECISION)
            k, o, gx, gy = torch.unravel_index(action, env.action_shape)
            assert torch.equal(slot, k)
            assert torch.equal(variant, state["item_id"].gather(1, k[:, None])[:, 0] * env.num_orientations + o)
            assert torch.equal(place, gx * env.grid[1] + gy)
            assert state["action_mask"].gather(1, action[:, None]).all()


def exploring_packer(env: PackingEnv, epsilon: float = 1.0, item_epsilon: float = 1.0, **kw: Any) -> HierarchicalPacker:
    policy = packer(env, **kw)
    policy.epsilon.fill_(epsilon)
    policy.item_epsilon.fill_(item_epsilon)
    return policy


def repeated(state: TensorDictBase, times: int) -> TensorDictBase:
    return state[:1].expand(times).clone()


@torch.no_grad()
def test_exploration_draws_any_placement_within_the_margin_and_no_other() -> None:
    env = solids_env()
    policy = exploring_packer(env, item_epsilon=0.0)
    state = repeated(random_states(env, 4), 300)
    with set_exploration_type(ExplorationType.RANDOM):
        drawn = policy(state.clone())
    # Among items that are alike, the last bit of a score picks one.
    slot = drawn["slot"].mode().values
    assert (drawn["slot"] == slot).sum() > 290
    growth = grown(env, state[0])[int(slot)]
    near = set(NaivePacker(env, policy).placements(state[0], int(slot), growth))
    assert 5 < len(near) < 60
    actions = drawn["action"][drawn["slot"] == slot].tolist()
    # Each is missed with a chance below (1 − 1/60)^290 = 0.8 %, and the seed is fixed.
    assert set(actions) == near


@torch.no_grad()
def test_exploration_draws_any_item_that_fits() -> None:
    env = solids_env()
    state = repeated(random_states(env, 7), 300)
    state["item_mask"][:, 1] = False
    state["legal_mask"][:, 1] = False
    policy = exploring_packer(env, epsilon=0.0)
    with set_exploration_type(ExplorationType.RANDOM):
        drawn = policy(state.clone())
    fits = state["item_mask"][0].nonzero().flatten().tolist()
    assert len(fits) > 1
    count = drawn["slot"].bincount(minlength=5)
    assert set(drawn["slot"].tolist()) == set(fits)
    # Uniform: each is drawn 300/n times, standard deviation below √(300/4) = 8.7; four of them are 35.
    assert (count[fits] - 300 / len(fits)).abs().max() < 35
    # It is also placed as well as it can be.
    for slot in fits:
        assert drawn["action"][drawn["slot"] == slot].unique().numel() == 1


@pytest.mark.parametrize("items", ["learned", "box"])
@torch.no_grad()
def test_epsilon_of_zero_and_greedy_mode_explore_nothing(items: str) -> None:
    env = solids_env()
    for state in states(env):
        wanted = packer(env, items=items)(state.clone())["action"]
        with set_exploration_type(ExplorationType.RANDOM):
            assert torch.equal(exploring_packer(env, 0.0, 0.0, items=items)(state.clone())["action"], wanted)
        for mode in (ExplorationType.DETERMINISTIC, ExplorationType.MODE):
            with set_exploration_type(mode):
                assert torch.equal(exploring_packer(env, items=items)(state.clone())["action"], wanted)


@pytest.mark.parametrize("exploring", [False, True])
@pytest.mark.parametrize("items", PICKS)
def test_where_nothing_is_legal_the_action_is_illegal_too(items: str, exploring: bool) -> None:
    env = solids_env(2)
    state = env.reset()
    policy = exploring_packer(env, items=items) if exploring else packer(env, items=items)
    full = state["box_heightmap"] + env.bin_size[2]
    z_map, legal = env.kernels.drop_map(full, state["item_id"], env.catalogue, env.bin)
    state.update({"box_heightmap": full, "z_map": z_map, "legal_mask": legal, "item_mask": legal.flatten(2).any(2)})
    state["item_id"][1] = -1
    with set_exploration_type(ExplorationType.RANDOM if exploring else ExplorationType.DETERMINISTIC):
        chosen = policy(state)
    assert chosen["action"].tolist() == chosen["slot"].tolist() == chosen["place"].tolist() == [0, 0]
    env.state.legal.zero_()
    assert env.step(chosen)["next", "done"].all()


@torch.no_grad()
def test_packer_takes_any_batch_shape() -> None:
    env, policy = solids_env(), packer(solids_env())
    state = torch.stack([random_states(env, steps) for steps in (1, 2, 3)])  # (3, 4)
    wanted = torch.stack([policy(row.clone()).select(*DECISION) for row in state])
    together, alone = policy(state.clone()), policy(state[2, 1].clone())
    for key in DECISION:
        assert torch.equal(together[key], wanted[key])
        assert alone[key].shape == ()
        assert torch.equal(alone[key], wanted[key][2, 1])


@torch.no_grad()
def test_pieces_of_a_batch_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    env, policy = solids_env(), packer(solids_env())
    state = random_states(env, 4)
    wanted = policy(state.clone())["action"]
    monkeypatch.setattr("torchrl_gpu.policies.packing.hierarchical.packer._IMAGES", 3)
    assert torch.equal(policy(state.clone())["action"], wanted)


# -- one set of weights for every environment -------------------------------------------------------------------------


@torch.no_grad()
def test_the_same_weights_pack_other_items_in_other_orientations() -> None:
    networks = trained()
    before = {name: value.clone() for name, value in networks.state_dict().items()}
    for env in (solids_env(), solids_env(2, orientations="axis", visible_items=3), solids_env(2, resolution=40)):
        state = random_states(env, 2)
        chosen = packer(env, networks)(state)
        assert state["action_mask"].gather(1, chosen["action"][:, None]).all()
        assert all(torch.equal(before[name], value) for name, value in networks.state_dict().items())


def test_only_weights_are_saved() -> None:
    networks = narrow()
    assert set(packer(solids_env(), networks).state_dict()) == {f"networks.{name}" for name in networks.state_dict()}
    weights = {name for name, _ in networks.named_parameters()}
    assert set(networks.state_dict()) == weights


def test_the_keys_that_it_reads_and_writes() -> None:
    env = solids_env()
    policy, state = packer(env), env.reset()
    assert set(policy.in_keys) <= set(env.observation_spec.keys())
    written = policy(state.select(*policy.in_keys))
    assert set(written.keys()) == set(policy.in_keys) | set(policy.out_keys)


@torch.no_grad()
@pytest.mark.parametrize("places", PLACES)
def test_a_shortlist_leaves_out_only_orientations_that_raise_the_pile_more(places: str) -> None:
    env, state = solids_env(), random_states(solids_env(), 4)
    whole, none_left_out = packer(env, places=places), packer(env, places=places, shortlist=env.num_orientations)
    assert torch.equal(whole(state.clone())["action"], none_left_out(state.clone())["action"])
    one = packer(env, places=places, shortlist=1, margin=1.0)(state.clone())
    least = packer(env, places="growth")(state.clone())
    assert torch.equal(one["slot"], least["slot"])
    assert torch.equal(one["variant"], least["variant"])
    per_map = env.grid[0] * env.grid[1]
    orientation = one["variant"] % env.num_orientations
    assert torch.equal(one["action"], (one["slot"] * env.num_orientations + orientation) * per_map + one["place"])


def test_the_same_packer_by_other_words() -> None:
    policy = packer(solids_env())
    # The tests of the baselines look at its choices.
    other = policy.choosing("box", "growth")
    assert other.planes is policy.planes
    policy.epsilon.fill_(0.5)
    assert other.epsilon == 0.5
    with pytest.raises(ValueError, match=r"items .*learned, waste, box, random; got 'most'"):
        policy.choosing("most", "growth")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"items": "largest"}, "items must be one of learned, waste, box, random; got 'largest'"),
        ({"places": "box"}, "places must be one of learned, growth; got 'box'"),
        ({"margin": -0.1}, "margin must be at least 0; got -0.1"),
        ({"shortlist": 0}, "shortlist must be at least 1; got 0"),
    ],
)
def test_words_and_numbers_that_it_does_not_know(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^HierarchicalPacker: {message}$"):
        packer(solids_env(), **changes)
    with pytest.raises(ValueError, match=r"^HierarchicalPacker: .*include z_map"):
        packer(solids_env(include=("item_top",)))
