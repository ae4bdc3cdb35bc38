"""Random boxes and boxes cut from a full bin."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import CutBoxes, RandomBoxes
from torchrl_gpu.envs.packing.items.boxes import box_catalogue
from torchrl_gpu.envs.packing.types import Bin

BPP10 = Bin((10.0, 10.0, 10.0), (10, 10))
HALF = Bin((2.5, 2.0, 3.0), (5, 4))  # cells of half a metre, 6 of them high


def test_random_boxes_are_every_triple_of_sides() -> None:
    catalogue, stream = RandomBoxes(2, 5).build(BPP10, "fixed", 30, 4)
    sides = torch.cat([catalogue.extent[:, 0], catalogue.height.long()], 1)
    assert {tuple(s) for s in sides.tolist()} == set(itertools.product(range(2, 6), repeat=3))
    assert torch.equal(catalogue.volume, sides.prod(1).float())
    assert stream.length == 30


def test_sides_come_in_modules() -> None:
    catalogue, _ = RandomBoxes(1, 6, step=2).build(BPP10, "fixed", 3, 2)
    sides = torch.cat([catalogue.extent[:, 0], catalogue.height.long()], 1)
    assert {tuple(s) for s in sides.tolist()} == set(itertools.product((1, 3, 5), repeat=3))
    with pytest.raises(ValueError, match=r"^RandomBoxes: step must be at least 1; got 0"):
        RandomBoxes(1, 6, step=0)


@pytest.mark.parametrize(("orientations", "count"), [("fixed", 1), ("yaw", 2), ("axis", 6), ("cube", 24)])
def test_orientations_of_a_box_are_its_sides_in_another_order(orientations: str, count: int) -> None:
    catalogue = box_catalogue(np.array([[1, 2, 3]]), np.array([6.0]), BPP10, orientations)
    turned = torch.cat([catalogue.extent[0], catalogue.height[0].long()[:, None]], 1).tolist()
    assert len(turned) == count
    assert turned[0] == [1, 2, 3]
    assert all(sorted(sides) == [1, 2, 3] for sides in turned)
    assert len({tuple(sides) for sides in turned}) == min(count, 6)


def test_sizes_become_metres_by_the_cell() -> None:
    catalogue = box_catalogue(np.array([[4, 2, 6]]), np.array([6.0]), HALF, "fixed")
    assert catalogue.extent.tolist() == [[[4, 2]]]
    assert catalogue.height.tolist() == [[3.0]]  # 6 cells of 0.5 m: as high as the bin
    catalogue, _ = RandomBoxes(2, 2).build(HALF, "fixed", 1, 1)
    assert catalogue.volume.tolist() == [1.0]  # (2 · 0.5 m)³


def test_a_box_must_fit_in_some_orientation() -> None:
    box_catalogue(np.array([[4, 5, 1]]), np.array([1.0]), HALF, "yaw")  # fits turned: 5×4
    with pytest.raises(ValueError) as error:
        box_catalogue(np.array([[1, 1, 1], [4, 5, 1]]), np.ones(2), HALF, "fixed")
    assert str(error.value) == (
        "box_catalogue: every box must fit the bin of [5.0, 4.0, 6.0] cells in some orientation; got a box of [4, 5, 1]"
        " cells"
    )


def test_boxes_turn_on_square_cells_only() -> None:
    oblong = Bin((10.0, 5.0, 10.0), (10, 10))
    RandomBoxes(1, 2).build(oblong, "fixed", 1, 1)
    with pytest.raises(
        ValueError, match=r"^box_catalogue: cells must be square for boxes to be turned; got \(1.0, 0.5\)"
    ):
        RandomBoxes(1, 2).build(oblong, "yaw", 1, 1)


# -- cut boxes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bin_", "message"),
    [
        (Bin((10.0, 10.0, 9.5), (10, 10)), "the bin's height must be a whole number of cells; got 9.5"),
        (Bin((10.0, 1.0, 10.0), (10, 1)), "the bin must be at least 2 cells a side; got (10, 1, 10)"),
    ],
)
def test_bins_that_cannot_be_cut_say_why(bin_: Bin, message: str) -> None:
    with pytest.raises(ValueError) as error:
        CutBoxes(pool=1).cut(bin_)
    assert str(error.value) == f"CutBoxes: {message}"


@pytest.mark.parametrize("order", ["layers", "stack"])
@pytest.mark.parametrize(("min_side", "max_side"), [(2, 5), (1, 1), (1, 3), (2, 3), (3, 5)])
@pytest.mark.parametrize("bin_", [BPP10, HALF])
def test_pieces_tile_the_bin(bin_: Bin, min_side: int, max_side: int, order: str) -> None:
    whole = (*bin_.cells, round(bin_.size[2] / bin_.cell[0]))
    for episode in CutBoxes(min_side, max_side, order, pool=5).cut(bin_):
        covered = np.zeros(whole, dtype=int)
        for corner, size in episode:
            assert min_side <= min(size)
            assert max(size) <= max_side
            covered[tuple(slice(c, c + s) for c, s in zip(corner, size, strict=True))] += 1
        assert (covered == 1).all()


@pytest.mark.parametrize("order", ["layers", "stack"])
def test_every_piece_stands_on_those_before_it(order: str) -> None:
    for episode in CutBoxes(order=order, pool=20).cut(BPP10):
        heights = np.zeros(BPP10.cells, dtype=int)
        for (x, y, z), (p, q, h) in episode:
            under = heights[x : x + p, y : y + q]
            assert (under == z).all()
            under += h
        assert (heights == 10).all()


def test_layers_come_in_order_of_their_base_and_stacks_do_not() -> None:
    bases = {
        order: [[corner[2] for corner, _ in episode] for episode in CutBoxes(order=order, pool=20).cut(BPP10)]
        for order in ("layers", "stack")
    }
    assert all(base == sorted(base) for base in bases["layers"])
    assert any(base != sorted(base) for base in bases["stack"])


def test_the_seed_decides_the_pool() -> None:
    pools = [CutBoxes(pool=3, seed=seed).cut(BPP10) for seed in (0, 0, 1)]
    assert pools[0] == pools[1] != pools[2]
    assert CutBoxes(3, 5, "stack", 7).reseeded(1).cut(BPP10) == CutBoxes(3, 5, "stack", 7, 1).cut(BPP10)


def test_pieces_beyond_the_episode_are_left_out() -> None:
    _, stream = CutBoxes(pool=4).build(BPP10, "fixed", 6, 1)
    assert stream.length == 6


@pytest.mark.parametrize("stability", ["none", "corners", "support"])
@pytest.mark.parametrize("order", ["layers", "stack"])
def test_replaying_the_known_packing_fills_the_bin(order: str, stability: str) -> None:
    num_envs = 12
    source = CutBoxes(order=order, pool=num_envs)
    env = PackingEnv(num_envs, items=source, stability=stability, device="cpu", seed=3, include=("z_map",))
    observation = env.reset()
    episodes = source.cut(env.bin)
    played = [episodes[int(row)] for row in env.state.key]
    assert len({int(row) for row in env.state.key}) > 1
    total = torch.zeros(num_envs, 1)
    for turn in range(max(len(episode) for episode in played)):
        action = torch.zeros(num_envs, dtype=torch.int64)
        for n, episode in enumerate(played):
            if turn >= len(episode):
                continue  # this one is full; whatever it does changes nothing
            (x, y, z), size = episode[turn]
            extent = env.catalogue.extent[observation["item_id"][n, 0], 0].tolist()
            assert extent == list(size[:2])
            assert observation["legal_mask"][n, 0, 0, x, y]
            assert observation["z_map"][n, 0, 0, x, y] == z
            action[n] = x * 10 + y  # orientation 0: as it was cut
        step = env.step(observation.set("action", action))["next"]
        alive = torch.tensor([[turn < len(episode)] for episode in played])
        last = torch.tensor([[turn >= len(episode) - 1] for episode in played])
        assert torch.equal(step["terminated"], last)
        assert (step["reward"][~alive] == 0).all()
        total += step["reward"]
        observation = step.exclude("reward")
    assert (observation["box_heightmap"] == 10).all()
    assert torch.allclose(observation["utilization"], torch.ones(num_envs, 1))
    assert torch.allclose(total, torch.ones(num_envs, 1))
    assert observation["num_packed"].flatten().tolist() == [len(episode) for episode in played]
    for n, episode in enumerate(played):  # steps past the end leave the record of placements alone
        record = env.placements[n, : len(episode), 2:].tolist()
        assert record == [list(corner[:2]) for corner, _ in episode]
        assert env.placement_z[n, : len(episode)].tolist() == [corner[2] for corner, _ in episode]
