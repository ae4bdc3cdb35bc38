"""Growth as products of matrices is the growth of the reference, where items rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.policies.packing.packer_scenes import ENVS, Voxels, random_states, solids_env, variants_of, voxels
from tests.tolerances import assert_near
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.kernels import reference
from torchrl_gpu.policies.packing import contact_growth
from torchrl_gpu.policies.packing.contact_growth import ContactGrowth

# Arms of 3 and 2 cells, and one that hangs over.
HOOK = voxels((3, 2, 2), [(0, 0, 0), (0, 0, 1), (1, 0, 1), (2, 0, 1), (0, 1, 0)])
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "solids": ("solids", {}),
    "solids at every cell": ("solids", {"grid_step": 1, "resolution": 10}),
    "turned by 30 degrees": ("solids", {"orientations": 30.0, "visible_items": 2}),
    "boxes": ("boxes", {}),
    "boxes on a grid": ("boxes", {"grid_step": 3}),
}


def grown(env: PackingEnv, state: Any, item_id: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Growth by `ContactGrowth` and by the reference, (B, J, Gx, Gy)."""
    item_id = state["item_id"] if item_id is None else item_id
    growth = ContactGrowth(env.catalogue.separated(), env.bin)
    found = growth(state["box_heightmap"], variants_of(env, item_id), state["z_map"].flatten(1, 2))
    wanted = reference.pile_growth(state["box_heightmap"], item_id, state["z_map"], env.catalogue, env.bin)
    return found, wanted.flatten(1, 2)


@pytest.mark.parametrize("kind", OTHERS)
def test_it_is_that_of_the_reference(kind: str) -> None:
    scene, changes = OTHERS[kind]
    env = ENVS[scene](2, **changes)
    for steps in (0, 3, 6):
        found, wanted = grown(env, random_states(env, steps))
        assert_near(found, wanted)
        assert wanted.max() > 0


def test_pieces_of_a_footprint_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    env = solids_env(2)
    state = random_states(env, 4)
    whole, _ = grown(env, state)
    monkeypatch.setattr(contact_growth, "_ELEMENTS", 1)
    assert_near(grown(env, state)[0], whole)


def test_items_that_the_bin_has_no_room_for() -> None:
    # 6 cells long, 4 cells of room across: only along x, or standing.
    size = {"bin_size": (6.0, 4.0, 6.0), "resolution": (6, 4), "grid_step": 2}
    env = solids_env(2, **size, items=Voxels(np.ones((6, 2, 2), dtype=bool), HOOK), orientations="cube")
    found, wanted = grown(env, random_states(env, 1))
    assert_near(found, wanted)
    assert not random_states(env, 1)["legal_mask"].flatten(3).any(3).all()


def test_by_hand_and_without_an_item() -> None:
    # The hook stands on a floor with one cell of 1 m under its overhang: its columns end at 2, 2, 2 and 1 m, so that
    # the pile grows by 2 + 2 + 2 + 1 − 1 = 6 m.
    env = solids_env(1, bin_size=(4.0, 4.0, 4.0), resolution=4, grid_step=2, items=Voxels(HOOK), orientations="fixed")
    growth, pile = ContactGrowth(env.catalogue.separated(), env.bin), torch.zeros(1, 4, 4)
    pile[0, 1, 0] = 1.0
    found = growth(pile, torch.tensor([[0, -1, 9]]), torch.zeros(1, 3, 2, 2))
    assert found[0, 0, 0, 0] == 6.0
    assert (found[0, 1:] == 0).all()
