"""Stability rules of one's own.

They are a class and `register`, and every backend packs by them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.envs.packing.kernels.parity import some_placement
from tests.envs.packing.scenes import judge, scene
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.envs.packing.kernels import available_backends, get_kernels, reference
from torchrl_gpu.envs.packing.stability import StabilityRule, register
from torchrl_gpu.envs.packing.stability.contacts import Contacts
from torchrl_gpu.envs.packing.stability.footprints import Footprint
from torchrl_gpu.envs.packing.stability.rule import Pile
from torchrl_gpu.envs.packing.types import STABILITY_RULES, Bin, Catalogue, Placement

BACKENDS = ("reference", "eager", "compiled")


class Flat(StabilityRule):
    """Rule that every cell with material touches.

    An item without material touches nothing.
    """

    name = "flat"

    def judge(self, footprint: Footprint) -> bool:
        return bool(footprint.contact.sum() == max(footprint.material.sum(), 1))

    def judge_all(self, contacts: Contacts) -> Tensor:
        rows, columns = contacts.windows.footprint
        count = contacts.zeros(rows * columns)
        for i, j in contacts.windows.offsets():
            count += contacts.at(i, j)
        return count == contacts.area


class FlatOnBearing(Flat):
    """Rule that every cell touches what bears load.

    Of a placed box the inner cells bear load.
    """

    name = "flat_on_bearing"
    tracks_bearing = True
    holds_floor = True

    def judge_top(self, footprint: Footprint) -> np.ndarray:
        bears = footprint.contact.copy()
        bears[[0, -1]] = False
        return bears

    def bears_after(self, pile: Pile, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
        assert pile.bears is not None
        after = reference.bear(pile.heightmap.cpu(), pile.bears.cpu(), placement, catalogue, bin_)
        return after.to(pile.bears.device)


@pytest.fixture(autouse=True)
def own_rules() -> Iterator[None]:
    rules = [Flat(), FlatOnBearing()]
    for rule in rules:
        register(rule)
    yield
    for rule in rules:
        del STABILITY_RULES[rule.name]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    if problem := available_backends()[request.param]:
        pytest.skip(problem)
    return str(request.param)


def play(backend: str, **changes: object) -> tuple[list[Tensor], int, int]:
    """Return the legal masks of twelve steps, and counts of placements.

    They are those that the rule allows, and those that it refuses.
    """
    env = PackingEnv(3, backend=backend, device="cpu", seed=0, num_items=8, visible_items=2, **changes)  # type: ignore[arg-type]
    shown = env.reset()
    masks = []
    for number in range(12):
        masks.append(shown["legal_mask"].clone())
        # Another legal action in each step.
        legal = shown["action_mask"]
        rank = (7 * number) % legal.sum(1).clamp_min(1)
        action = ((legal.cumsum(1) == rank[:, None] + 1) & legal).int().argmax(1)
        _, shown = env.step_and_maybe_reset(shown.set("action", action))
    fits = env.kernels.drop_map(env.state.heightmap, env.state.item_id, env.catalogue, Bin(env.bin.size, env.bin.cells))
    allowed = int(shown["legal_mask"].sum())
    return masks, allowed, int(fits[1].sum()) - allowed


@pytest.mark.parametrize("rule", ["flat", "flat_on_bearing"])
def test_every_backend_packs_boxes_by_a_rule_of_ones_own(backend: str, rule: str) -> None:
    masks, allowed, refused = play(backend, stability=rule)
    expected, *_ = play("reference", stability=rule)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(masks, expected, strict=True))
    assert min(allowed, refused) > 10


def test_every_backend_packs_solids_by_a_rule_of_ones_own(backend: str) -> None:
    solids = {"items": ProceduralSolids(4, seed=1), "bin_size": (0.4, 0.4, 0.3), "resolution": 16}
    masks, *_ = play(backend, stability="flat", **solids)
    expected, *_ = play("reference", stability="flat", **solids)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(masks, expected, strict=True))


def test_resets_show_what_the_rule_says_of_the_bare_floor(backend: str) -> None:
    solids = ProceduralSolids(6, seed=1)
    env = PackingEnv(
        4,
        items=solids,
        bin_size=(0.4, 0.4, 0.3),
        resolution=16,
        stability="flat",
        backend=backend,
        device="cpu",
        seed=0,
    )
    env.reset()
    s = env.state
    z_map, legal = reference.drop_map(torch.zeros_like(s.heightmap), s.item_id, env.catalogue, env.bin)
    assert torch.equal(s.legal, legal)
    assert torch.equal(s.z_map, z_map)
    stable = STABILITY_RULES["flat"].stable_on_floor(env.catalogue, env.bin)  # type: ignore[attr-defined]
    assert 0 < stable.sum() < stable.numel()


def test_a_rule_of_ones_own_is_a_fallback(backend: str) -> None:
    masks, *_ = play(backend, stability="com", fallback="flat")
    expected, *_ = play("reference", stability="com", fallback="flat")
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(masks, expected, strict=True))


@pytest.mark.parametrize("kind", ["boxes", "solids", "boxes as solids"])
def test_kernels_agree_on_a_rule_of_ones_own(backend: str, kind: str) -> None:
    for seed in range(12):
        s = scene(seed, kind, stability="flat")
        _, legal = get_kernels(backend).drop_map(*s)
        assert torch.equal(legal, reference.drop_map(*s)[1])


def test_a_placement_is_judged_by_its_own_cells() -> None:
    contact = np.array([[True, False], [True, True]])
    assert not judge(contact, "flat")
    assert judge(contact, "flat", material=contact)


def test_bearing_maps_are_those_of_the_rule(backend: str) -> None:
    s = scene(4, "boxes", stability="flat_on_bearing")
    placement, bears = some_placement(s, 0), torch.ones_like(s.heightmap, dtype=torch.bool)
    came = get_kernels(backend).bears_after(Pile(s.heightmap, bears), placement, s.catalogue, s.bin_)
    assert torch.equal(came, reference.bear(s.heightmap, bears, placement, s.catalogue, s.bin_))


def test_register_refuses_a_second_rule_of_a_name_and_one_that_refuses_the_floor() -> None:
    with pytest.raises(ValueError, match="'flat'"):
        register(Flat())

    class Slippery(FlatOnBearing):
        name = "slippery"
        holds_floor = False

    with pytest.raises(ValueError, match=r"slippery.*floor"):
        register(Slippery())
