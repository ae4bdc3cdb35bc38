"""The planes that a placement network sees, worked by hand on a small bin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.no_host_reads import NoHostReads
from tests.tolerances import assert_near
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.policies import AgentSpace
from torchrl_gpu.policies.packing import RandomLegal
from torchrl_gpu.policies.packing.features import PlacementFeatures


def packing_env(num_envs: int = 4, **changes: object) -> PackingEnv:
    arguments = {"items": RandomBoxes(1, 2), "orientations": "fixed", "device": "cpu", "seed": 0}
    return PackingEnv(num_envs, **arguments | changes)  # type: ignore[arg-type]


# A bin of 3×3×3 cells of a metre, grid step 2. Rows are x, columns are y:
PILE = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 1.0], [3.0, 0.0, 0.0]])
# Slot 0 holds a box of 2×1×1, whose corners are x in {0, 1} (flush with the wall), y in {0, 2}; slot 1 one of 1×2×2,
# with x in {0, 2}, y in {0, 1}. Where they come to rest is the highest cell under them:
#   slot 0: cells 0 0 | 2 1    slot 1: cells 0 1 | 1 2
#           cells 0 3 | 1 0            cells 3 0 | 0 0
Z = torch.tensor([[[0.0, 2.0], [3.0, 1.0]], [[1.0, 2.0], [3.0, 0.0]]])
UNDER = torch.tensor([[[0.0, 1.5], [1.5, 0.5]], [[0.5, 1.5], [1.5, 0.0]]])
# Base + height (1 and 2) is at most 3.
LEGAL = torch.tensor([[[1, 1], [0, 1]], [[1, 0], [0, 1]]]).bool()
SIZE = torch.tensor([[2.0, 1.0, 1.0, 2.0], [1.0, 2.0, 2.0, 4.0]])
# Mean pile beside each placement, in the order x below, x above, y below, y above; W is the wall, as high as the bin.
W = 3.0
BESIDE = torch.tensor(
    [
        # slot 0 at (0, 0): wall; (2, 0); wall; cells (0, 1), (1, 1). At (0, 2): wall; (2, 2); (0, 1), (1, 1); wall.
        # At (1, 0): (0, 0); wall; wall; (1, 1), (2, 1). At (1, 2): (0, 2); wall; (1, 1), (2, 1); wall.
        [[[W, W], [0.0, 2.0]], [[3.0, 0.0], [W, W]], [[W, 0.5], [W, 0.0]], [[0.5, W], [0.0, W]]],
        # slot 1 at (0, 0): wall; (1, 0), (1, 1); wall; (0, 2). At (0, 1): wall; (1, 1), (1, 2); (0, 0); wall.
        # At (2, 0): (1, 0), (1, 1); wall; wall; (2, 2). At (2, 1): (1, 1), (1, 2); wall; (2, 0); wall.
        [[[W, W], [0.0, 0.5]], [[0.0, 0.5], [W, W]], [[W, 0.0], [W, 3.0]], [[2.0, W], [0.0, W]]],
    ]
)
# Of the four places of the grid: cells 0 1 0 0 | 2 1 and cells 3 0 | 0
MEAN_PILE = torch.tensor([[0.25, 1.5], [1.5, 0.0]])
TOP_PILE = torch.tensor([[1.0, 2.0], [3.0, 0.0]])


def planes_of_the_example() -> Tensor:
    """(J, C, Gx, Gy)."""
    env = packing_env(bin_size=(3.0, 3.0, 3.0), resolution=3, grid_step=2, visible_items=2)
    features = PlacementFeatures(AgentSpace.of(env))
    return features(PILE[None], SIZE[None, :, None], Z[None, :, None], LEGAL[None, :, None])[0]


def test_planes_by_hand() -> None:
    height = SIZE[:, 2, None, None]
    expected = [LEGAL.float(), Z / 3, (Z + height) / 3, (Z - UNDER) / 3]
    # All are within ±1 bin height.
    expected += [(BESIDE[:, side] - Z) / 3 for side in range(4)]
    shares = torch.cat([SIZE[:, :3] / 3, (SIZE[:, 3:] / 27) ** (1 / 3)], 1)
    expected += [shares[:, i, None, None].expand_as(Z) for i in range(4)]
    expected += [plane.expand_as(Z) / 3 for plane in (MEAN_PILE, TOP_PILE)]
    expected.append(torch.ones_like(Z))
    planes = planes_of_the_example()
    assert planes.shape == (2, PlacementFeatures.num_planes, 2, 2)
    for number, plane in enumerate(expected):
        assert (planes[:, number] - plane).abs().max() < 1e-5, f"plane {number}"


def test_the_example_is_what_the_environment_says() -> None:
    env = packing_env(bin_size=(3.0, 3.0, 3.0), resolution=3, grid_step=2, visible_items=2)
    row = [int((env.item_sizes[:-1, 0, :3] == size[:3]).all(-1).nonzero()) for size in SIZE]
    z_map, legal = env.kernels.drop_map(PILE[None], torch.tensor([row]), env.catalogue, env.bin)
    assert torch.equal(z_map[0, :, 0], Z)
    assert torch.equal(legal[0, :, 0], LEGAL)


def played(env: PackingEnv, steps: int) -> dict[str, Tensor]:
    state = env.rollout(steps, RandomLegal(env), break_when_any_done=False)[:, -1]
    return {
        "heightmap": state["box_heightmap"],
        "item_size": state["item_size"],
        "z_map": state["z_map"],
        "legal": state["legal_mask"],
    }


@pytest.mark.parametrize("step", [1, 2, 3])
def test_resting_and_sides_against_a_loop(step: int) -> None:
    env = packing_env(bin_size=(5.0, 7.0, 6.0), resolution=(5, 7), grid_step=step, orientations="yaw", visible_items=2)
    seen = played(env, 6)
    features = PlacementFeatures(AgentSpace.of(env))
    assert not features.state_dict()
    with NoHostReads():
        planes = features(**seen)
    extents = (seen["item_size"][..., :2]).long().flatten(1, 2)
    z = seen["z_map"].flatten(1, 2)
    for n, j, gx, gy in torch.cartesian_prod(*(torch.arange(size) for size in z.shape)).tolist():
        p, q = extents[n, j].tolist()
        x, y = min(gx * step, 5 - p), min(gy * step, 7 - q)
        walled = torch.full((7, 9), 6.0)
        walled[1:-1, 1:-1] = seen["heightmap"][n]
        under = walled[x + 1 : x + 1 + p, y + 1 : y + 1 + q]
        across = walled[:, y + 1 : y + 1 + q]
        along = walled[x + 1 : x + 1 + p]
        sides = [across[x], across[x + 1 + p], along[:, y], along[:, y + 1 + q]]
        expected = [z[n, j, gx, gy] - under.mean(), *(side.mean() - z[n, j, gx, gy] for side in sides)]
        found = planes[n, j, 3:8, gx, gy]
        assert_near(found, (torch.stack(expected) / 6))


def test_an_empty_slot_gives_finite_planes() -> None:
    env = packing_env(bin_size=(4.0, 4.0, 4.0), resolution=4, num_items=1, visible_items=3)
    seen = played(env, 1)
    assert (env.state.item_id == -1).any()
    planes = PlacementFeatures(AgentSpace.of(env))(**seen)
    assert planes.isfinite().all()
    # Nothing is legal there.
    assert not planes[:, 1:, 0].any()


def test_scale_does_not_matter() -> None:
    small = packing_env(bin_size=(0.5, 0.5, 0.6), resolution=5)
    large = packing_env(bin_size=(5.0, 5.0, 6.0), resolution=5)
    seen = played(large, 4)
    shrunk = {
        "heightmap": seen["heightmap"] / 10,
        "item_size": seen["item_size"] / torch.tensor([10.0, 10.0, 10.0, 1000.0]),
        "z_map": seen["z_map"] / 10,
        "legal": seen["legal"],
    }
    assert_near(PlacementFeatures(AgentSpace.of(small))(**shrunk), PlacementFeatures(AgentSpace.of(large))(**seen))
