"""Observations of the networks.

By hand on a small bin, and compared with other definitions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.policies.packing.packer_scenes import ENVS, Voxels, boxes_env, random_states, solids_env, variants_of, voxels
from tests.tolerances import assert_near
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences, CutBoxes
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.policies import AgentSpace
from torchrl_gpu.policies.packing.features import PlacementFeatures
from torchrl_gpu.policies.packing.hierarchical.views import ItemViews, PlacementPlanes

# -- planes of the worker ---------------------------------------------------------------------------------------------


def by_hand_env() -> PackingEnv:
    """A bin of 4×4×4 cells of a metre with grid step 2.

    Its one item has 3×1 columns: 0 to 2, 1 to 2, 1 to 3.
    """
    item = voxels((3, 1, 3), [(0, 0, 0), (0, 0, 1), (1, 0, 1), (2, 0, 1), (2, 0, 2)])
    size = {"bin_size": (4.0, 4.0, 4.0), "resolution": 4, "grid_step": 2}
    return solids_env(1, **size, items=Voxels(item), orientations="fixed", visible_items=1)


PILE = torch.zeros(1, 4, 4)
PILE[0, 1, 0] = PILE[0, 2, 2] = 1.0


def planes_by_hand(variant: int = 0) -> tuple[Tensor, Tensor]:
    """Growth (Gx, Gy) and planes (C, Gx, Gy)."""
    planes, number = PlacementPlanes(by_hand_env()), torch.tensor([[variant]])
    z_map, legal = planes.kernels.drop_map(PILE, number, planes.catalogue, planes.bin)
    z_map = z_map[:, :, 0]
    legal = legal[:, :, 0]
    growth = planes.growth(PILE, number, z_map)
    return growth[0, 0], planes(PILE, number, z_map, legal, growth)[0, 0]


def test_growth_and_planes_by_hand() -> None:
    # Corners at x in {0, 1} (flush with the wall), y in {0, 2}. Cells under the item, where it rests, tops after it:
    #   (0, 0): 0 1 0, z = max(0 − 0, 1 − 1, 0 − 1) = 0, 2 2 3: + 2 + 1 + 3 = 6    (0, 2): 0 0 1, z = 0, 2 2 3: + 6
    #   (1, 0): 1 0 0, z = 1,                            3 3 4: + 2 + 3 + 4 = 9    (1, 2): 0 1 0, z = 0, 2 2 3: + 6
    growth, planes = planes_by_hand()
    assert_near(growth, torch.tensor([[6.0, 6.0], [9.0, 6.0]]) / 64)
    assert planes.shape == (PlacementPlanes.num_planes, 2, 2)
    # The item's 5 cells are no waste: 1, 1, 4 and 1 cells are, in fiftieths of the bin.
    assert_near(planes[15], torch.tensor([[1.0, 1.0], [4.0, 1.0]]) / 64 * 50)
    # Of 2×2 cells from the item's corner on: tops 2 2 | 3, bottoms 0 1 | 1; without material 0, and the bin's height.
    assert_near(planes[16], torch.tensor([[2.0, 0.0], [3.0, 0.0]]) / 4)
    assert_near(planes[17], torch.tensor([[0.0, -4.0], [-1.0, -4.0]]) / 4)


def test_planes_without_an_item() -> None:
    growth, planes = planes_by_hand(-1)
    assert (growth == 0).all()
    # There are no sides and no volume.
    assert (planes[8:12] == 0).all()
    assert (planes[15:17] == 0).all()
    assert (planes[17] == -1).all()
    # Nothing is legal.
    assert (planes[0] == 0).all()
    assert planes.isfinite().all()


def test_waste_is_bounded() -> None:
    planes, number = PlacementPlanes(by_hand_env()), torch.zeros(1, 1, dtype=torch.int64)
    nothing = torch.zeros(1, 1, 2, 2)
    for growth, waste in ((nothing, -1.0), (nothing + 1, 4.0)):
        assert (planes(PILE, number, nothing, nothing.bool(), growth)[0, 0, 15] == waste).all()


@pytest.mark.parametrize("kind", ENVS)
def test_the_first_planes_are_those_of_the_placement_network(kind: str) -> None:
    env = ENVS[kind]()
    state = random_states(env, 4)
    maps, legal = state["z_map"].flatten(1, 2), state["legal_mask"].flatten(1, 2)
    planes, variants = PlacementPlanes(env), variants_of(env, state["item_id"])
    growth = planes.growth(state["box_heightmap"], variants, maps)
    ours = planes(state["box_heightmap"], variants, maps, legal, growth)
    theirs = PlacementFeatures(AgentSpace.of(env))(
        *(state[k] for k in ("box_heightmap", "item_size", "z_map", "legal_mask"))
    )
    assert_near(ours[:, :, : PlacementFeatures.num_planes], theirs)


def test_items_larger_than_the_bin_in_some_orientation() -> None:
    # 6 cells long, 4 cells of room across: only along x, or standing.
    size = {"bin_size": (6.0, 4.0, 6.0), "resolution": (6, 4), "grid_step": 2}
    env = solids_env(2, **size, items=Voxels(np.ones((6, 2, 2), dtype=bool)), orientations="cube", visible_items=1)
    state = env.reset()
    planes, variants = PlacementPlanes(env), variants_of(env, state["item_id"])
    maps, legal = state["z_map"][:, 0], state["legal_mask"][:, 0]
    growth = planes.growth(state["box_heightmap"], variants, maps)
    seen = planes(state["box_heightmap"], variants, maps, legal, growth)
    assert seen.isfinite().all()
    assert not legal.flatten(2).any(2).all()
    assert ItemViews(env, 4)(state["box_heightmap"], state["item_id"]).shape == (2, 1, 7, 4, 4)


# -- views of the manager ---------------------------------------------------------------------------------------------

# Arms of 4, 3 and 2 cells along x, y and z from a common cell.
TRIPOD = voxels((4, 3, 2), [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0), (0, 1, 0), (0, 2, 0), (0, 0, 1)])


def tripod_env(**changes: object) -> PackingEnv:
    size = {"bin_size": (4.0, 4.0, 8.0), "resolution": 4, "grid_step": 1, "orientations": "yaw"}
    return solids_env(2, **{**size, "items": Voxels(TRIPOD), "visible_items": 2, "num_items": 1, **changes})


def views_of(env: PackingEnv, cells: int, pile: Tensor | None = None) -> Tensor:
    """(B, K, 7, V, V) of what the environment shows at first."""
    shown = env.reset()
    return ItemViews(env, cells)(shown["box_heightmap"] if pile is None else pile, shown["item_id"])


def test_views_are_those_of_the_turned_voxels() -> None:
    views = views_of(tripod_env(), 4)[0, 0, :6] * 8
    centres = np.argwhere(TRIPOD) + 0.5
    for view, rotation in zip(views, orientation_set("axis", boxes=False), strict=True):
        turned = centres @ rotation.T
        cells = np.round(turned - turned.min(0)).astype(int)
        top = torch.zeros(4, 4)
        for x, y, z in cells:
            top[x, y] = max(float(top[x, y]), z + 1.0)
        assert_near(view, top)


def test_an_empty_slot_has_no_views_and_the_pile_stands_beside_each() -> None:
    pile = torch.arange(32.0).view(2, 4, 4) / 4
    views = views_of(tripod_env(), 4, pile)
    # One item leaves a slot of two empty.
    assert (views[:, 1, :6] == 0).all()
    for slot in (0, 1):
        assert_near(views[:, slot, 6], pile / 8)


def test_a_pixel_is_the_highest_cell_in_it() -> None:
    pile = torch.arange(32.0).view(2, 4, 4) / 4
    views = views_of(tripod_env(), 2, pile)[:, 0] * 8
    assert views[0, 0].tolist() == [[2, 1], [1, 0]]
    assert views[:, 6].tolist() == [[[1.25, 1.75], [3.25, 3.75]], [[5.25, 5.75], [7.25, 7.75]]]


def test_other_environments_of_the_same_items_have_the_same_views(monkeypatch: pytest.MonkeyPatch) -> None:
    env, turns = tripod_env(), tripod_env(orientations="cube")
    # It has all the views itself.
    monkeypatch.setattr(turns.items, "build", None)
    for other in (turns, env.like(1, items=env.shared_items())):
        assert torch.equal(ItemViews(other, 4).views, ItemViews(env, 4).views)


def test_views_may_be_finer_than_the_bin() -> None:
    fine, exact = views_of(tripod_env(), 8), views_of(tripod_env(), 4)
    assert torch.equal(fine, exact.repeat_interleave(2, 3).repeat_interleave(2, 4))


def test_a_box_shows_its_six_ways_up() -> None:
    env = boxes_env(1, orientations="fixed", visible_items=1)
    views = ItemViews(env, 8).views[:-1] * 8
    assert views.shape[:2] == (env.catalogue.num_items, 6)
    for item, sides in enumerate(zip(*env.catalogue.extent[:, 0].T.tolist(), env.catalogue.height[:, 0], strict=True)):
        seen = sorted(round(float(view.amax())) for view in views[item])
        assert seen == sorted([int(side) for side in sides] * 2)


def test_rows_of_views_are_rows_of_the_catalogue(tmp_path: Path) -> None:
    np.save(tmp_path / "orders.npy", np.array([[[2, 3, 4], [1, 1, 2]], [[1, 2, 3], [2, 2, 2]]]))
    orders = BoxSequences(str(tmp_path / "orders.npy"))
    for env in (boxes_env(1, items=orders), boxes_env(1, items=CutBoxes(1, 3, pool=4)), solids_env(1)):
        views = ItemViews(env, max(env.bin.cells))
        assert len(views.views) == env.catalogue.num_items + 1
        # As given, an item is as high as in its first orientation: that is how the rows are told apart.
        height = views.views[:-1, 0].amax((1, 2)) * env.bin.size[2]
        assert_near(height, env.catalogue.height[:, 0])


# -- both -------------------------------------------------------------------------------------------------------------
