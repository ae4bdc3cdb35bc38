"""Look-ahead over free places.

It is held against the NumPy reference kernels, and in a bin where the answer is known.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tests.no_host_reads import NoHostReads
from tests.policies.packing.packer_scenes import random_states, solids_env
from tests.policies.packing.test_placement_values import pallet, some_weights
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences
from torchrl_gpu.envs.packing.kernels import get_kernels
from torchrl_gpu.envs.packing.stability.rule import Pile
from torchrl_gpu.policies import AgentSpace, PackingPolicy
from torchrl_gpu.policies.packing.ntuple.tables import NEVER
from torchrl_gpu.policies.packing.placement_values import NAMES, LinearPlacementValues
from torchrl_gpu.policies.packing.placements import placed_at
from torchrl_gpu.policies.packing.planners.free_places import FreePlaces, probe_boxes

RULES = {"support": {"stability": "support"}, "load_bearing": {"stability": "load_bearing", "max_tilt": 3.0}}
WEIGHT = 2.0
STEP = 4
COARSE = {"resolution": (30, 20), "grid_step": 1}


def values_of(env: PackingEnv, **weights: float) -> LinearPlacementValues:
    chosen = [weights.get(name, 0.0) for name in NAMES] if weights else some_weights()
    return LinearPlacementValues(AgentSpace.of(env), chosen)


def lowest_places(env: PackingEnv, shown: TensorDictBase, row: int, action: int, step: int) -> float:
    """Mean lowest place of three probes after an action, bin heights.

    It comes from the reference kernels.
    """
    kernels = get_kernels("reference")
    places = env.bin.grid[0] * env.bin.grid[1]
    variant, place = divmod(action, places)
    slot, turn = divmod(variant, env.num_orientations)
    of_row = torch.tensor([turn]), torch.tensor([place]), shown["z_map"][row].flatten()[None, action]
    placement = placed_at(shown["item_id"][row, slot, None], *of_row, env.catalogue, env.bin)
    bears = shown["bearing_map"][row, None] if env.bin.rule.tracks_bearing else None
    pile = Pile(shown["box_heightmap"][row, None], bears)
    heightmap = kernels.place(pile.heightmap, placement, env.catalogue, env.bin)
    if bears is not None:
        bears = kernels.bears_after(pile, placement, env.catalogue, env.bin)
    probes = probe_boxes(env.catalogue, 3)
    heights = []
    for number in range(3):
        tried = replace(env.bin, step=step)
        z_map, legal = kernels.maps(Pile(heightmap, bears), torch.tensor([[number]]), probes, tried)
        places_of_probe = z_map[legal]
        heights.append(float(places_of_probe.min()) if len(places_of_probe) else env.bin.size[2])
    return sum(heights) / 3 / env.bin.size[2]


def looked_again(env: PackingEnv, **changes: float) -> FreePlaces:
    settings: dict[str, float] = {"weight": WEIGHT, "candidates": 5, "step": STEP}
    return FreePlaces(env, values_of(env), probe_boxes(env.catalogue, 3), **settings | changes)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("visible", [1, 2])
def test_values_are_lowered_by_the_lowest_places_of_the_reference(rule: str, visible: int) -> None:
    env = pallet(3, visible_items=visible, **COARSE, **RULES[rule])
    shown = random_states(env, 12)
    policy = looked_again(env)
    by_weights = values_of(env)(*(shown[key] for key in policy.values.in_keys))
    found = policy(shown.clone())["action_value"]
    best, actions = by_weights.topk(5, 1)
    assert (best[:, 1] > NEVER / 2).all()
    for row in range(3):
        for value, action in zip(best[row].tolist(), actions[row].tolist(), strict=True):
            if value > NEVER / 2:
                wanted = value - WEIGHT * lowest_places(env, shown, row, action, STEP)
                assert found[row, action].item() == pytest.approx(wanted, abs=1e-5)
        others = torch.ones_like(found[row], dtype=torch.bool)
        others[actions[row]] = False
        valued = by_weights[row][others] > NEVER / 2
        assert (found[row][others][valued] <= found[row, actions[row]].max()).all()
        assert (found[row][others][~valued] <= NEVER).all()


@pytest.mark.parametrize("rule", RULES)
def test_a_batch_and_a_gpus_way_give_the_values_of_single_rows(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = pallet(4, **COARSE, **RULES[rule])
    shown = random_states(env, 10)
    # Of the last row nothing is legal.
    for key in ("legal_mask", "action_mask"):
        shown[key][3] = False
    policy = looked_again(env)
    wanted = policy(shown.clone())
    assert (wanted["action_value"][3] <= NEVER).all()
    for row in range(4):
        assert policy(shown[row].clone())["action_value"].equal(wanted["action_value"][row])
    monkeypatch.setattr("torchrl_gpu.policies.packing.planners.free_places._AT_ONCE", 3)
    assert policy(shown.clone())["action"].equal(wanted["action"])
    # Illegal placements are looked at, too, where their number would have to be waited for.
    monkeypatch.setattr("torchrl_gpu.policies.packing.planners.free_places.native.runs_on", lambda tensor: False)
    assert policy(shown.clone())["action_value"].equal(wanted["action_value"])


def test_a_gpu_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    env = pallet(2, **COARSE, **RULES["support"])
    policy = looked_again(env)
    shown = random_states(env, 6)
    policy(shown.clone())
    monkeypatch.setattr("torchrl_gpu.policies.packing.planners.free_places.native.runs_on", lambda tensor: False)
    with NoHostReads():
        policy(shown.clone())


def test_without_weight_it_is_the_policy_itself() -> None:
    env = pallet(3, **COARSE, **RULES["support"])
    shown = random_states(env, 8)
    plain = PackingPolicy(AgentSpace.of(env), values_of(env))
    assert looked_again(env, weight=0.0)(shown.clone())["action"].equal(plain(shown.clone())["action"])


@pytest.mark.parametrize(("weight", "base"), [(0.0, 0.0), (5.0, 1.0)])
def test_a_long_box_keeps_the_floor_that_it_needs(tmp_path: Path, weight: float, base: float) -> None:
    # Three of ten cells are taken by a box, on which the second one may stand. Seven cells are left for the long third.
    boxes = [[3, 4, 1], [2, 4, 1], [7, 4, 1]]
    (tmp_path / "boxes.json").write_text(json.dumps([boxes]))
    items = BoxSequences(str(tmp_path / "boxes.json"), in_order=True)
    env = PackingEnv(
        1,
        bin_size=(10.0, 4.0, 4.0),
        resolution=(10, 4),
        items=items,
        num_items=3,
        orientations="fixed",
        stability="support",
        include=["z_map"],
        device="cpu",
    )
    # By weights alone a low place is better.
    policy = FreePlaces(env, values_of(env, base=-1.0, reach=-0.1), weight=weight, step=1)
    shown = env.reset()
    for _ in boxes:
        shown = env.step(policy(shown))["next"]
    assert env.state.placement_z[0].tolist() == [0.0, base, 0.0 if weight else 1.0]


def test_probes_are_spread_from_short_to_long() -> None:
    env = pallet(1, **COARSE)
    probes = probe_boxes(env.catalogue, 5)
    longest = probes.extent[:, 0].amax(1)
    assert longest.equal(longest.sort().values)
    assert longest[0] < longest[-1]
    assert {tuple(size) for size in probes.extent[:, 0].tolist()} <= {
        tuple(size) for size in env.catalogue.extent[:, 0].tolist()
    }
    everything = probe_boxes(env.catalogue, 10_000)
    assert sorted_rows(everything.extent[:, 0]).equal(sorted_rows(env.catalogue.extent[:, 0]))


def sorted_rows(sides: Tensor) -> Tensor:
    return torch.tensor(sorted(sides.tolist()))


def test_other_items_and_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="FreePlaces: env must be a PackingEnv of boxes that includes z_map"):
        FreePlaces(solids_env(), values_of(pallet(1, **COARSE)))
    env = pallet(1, **COARSE)
    with pytest.raises(ValueError, match=r"FreePlaces: weight must be .*; got -1"):
        looked_again(env, weight=-1)
    with pytest.raises(ValueError, match=r"FreePlaces: step must be .*; got 31"):
        looked_again(env, step=31)
