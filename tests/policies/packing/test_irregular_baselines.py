"""The rows of the evaluation table of irregular packing."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.policies.packing.packer_scenes import solids_env, trained
from torchrl_gpu.policies.packing import DeepestBottomLeft, HierarchicalPacker, VolumeSorted
from torchrl_gpu.policies.packing.heuristics import (
    BOTH,
    DEEPEST,
    LESS_WASTE,
    MANAGER,
    RANDOM,
    RULE,
    VALUES,
    WORKER,
    RandomItem,
    irregular_baselines,
)

# -- random items --


def test_items_are_drawn_before_places() -> None:
    legal = torch.zeros(4000, 2, 1, 2, 5, dtype=torch.bool)
    # One place for the first item, nine for the second.
    legal[:, 0, 0, 0, 0] = True
    legal[:, 1] = True
    legal[:, 1, 0, 1, 4] = False
    torch.manual_seed(0)
    action = RandomItem(solids_env())(TensorDict({"legal_mask": legal}, [4000]))["action"]
    slot, place = action // 10, action % 10
    assert legal.flatten(1).gather(1, action[:, None]).all()
    # Five standard errors.
    assert abs((slot == 0).float().mean() - 0.5) < 0.04
    counts = place[slot == 1].bincount(minlength=10)
    assert counts[9] == 0
    assert ((counts[:9] - 2000 / 9).abs() < 75).all()


def test_only_items_that_fit_are_drawn() -> None:
    legal = torch.zeros(50, 3, 1, 2, 2, dtype=torch.bool)
    legal[:, 2, 0, 1, 0] = True
    legal[0] = False
    action = RandomItem(solids_env())(TensorDict({"legal_mask": legal}, [50]))["action"]
    assert action.tolist() == [0, *[2 * 4 + 2] * 49]


# -- box order --


def test_the_largest_bounding_box_goes_first() -> None:
    env = solids_env()
    shown = env.reset()
    largest = env.catalogue.box_volume(env.bin)[shown["item_id"]].argmax(1)
    action = VolumeSorted(env, DeepestBottomLeft(env), by="box")(shown)["action"]
    assert torch.equal(action // (env.num_actions // env.visible_items), largest)
    with pytest.raises(ValueError, match=r"VolumeSorted: by .*volume, box; got 'weight'"):
        VolumeSorted(env, DeepestBottomLeft(env), by="weight")


# -- rows --


def test_baselines_of_irregular_items_have_these_names() -> None:
    env = solids_env()
    packer = HierarchicalPacker(env, trained())
    assert list(irregular_baselines(env, packer)) == [RANDOM, DEEPEST, RULE, LESS_WASTE, VALUES, WORKER, MANAGER, BOTH]
    assert list(irregular_baselines(env, packer, learned=False)) == [RANDOM, DEEPEST, RULE, LESS_WASTE, VALUES]
    # There is no choice, and no manager.
    env = solids_env(visible_items=1)
    assert list(irregular_baselines(env, HierarchicalPacker(env, trained()))) == [RANDOM, DEEPEST, RULE, VALUES, WORKER]


def test_baseline_of_irregular_items_chooses_as_its_name_says() -> None:
    env, networks = solids_env(), trained()
    packer = HierarchicalPacker(env, networks)
    rows, shown = irregular_baselines(env, packer), env.reset()
    for name, items, places in (
        (RULE, "box", "growth"),
        (LESS_WASTE, "waste", "growth"),
        (WORKER, "box", "learned"),
        (MANAGER, "learned", "growth"),
        (BOTH, "learned", "learned"),
    ):
        made = HierarchicalPacker(env, networks, items, places)
        assert torch.equal(rows[name](shown.clone())["action"], made(shown.clone())["action"])
        assert rows[name].networks is networks
    assert (packer.items, packer.places) == ("learned", "learned")
