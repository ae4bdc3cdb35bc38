"""The last placement of each bin, judged with what lies below held fast."""

from __future__ import annotations

import pytest
import torch

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.envs.packing.physics import plan_of, stands_in_physics

pytest.importorskip("mujoco")


def empty_bins(number: int, **changes: object) -> PackingEnv:
    size = {"bin_size": (0.3, 0.3, 0.3), "resolution": 6, "items": RandomBoxes(3, 3), "orientations": "fixed"}
    return PackingEnv(number, **size | changes, device="cpu", seed=0)


def bins(second: list[int]) -> PackingEnv:
    env = empty_bins(len(second))
    current = env.reset()
    for gx in ([0] * len(second), second):
        step = env.step(current.set("action", torch.tensor(gx) * env.grid[1]))
        current = step["next"].exclude("reward")
    return env


def test_the_last_item_of_each_bin_is_judged() -> None:
    # The boxes are on top, a third over the edge, two thirds over it, and beside, on the floor.
    env = bins([0, 1, 2, 3])
    assert env.num_packed.tolist() == [2, 2, 2, 2]
    assert stands_in_physics(env, [0, 1, 2, 3]).tolist() == [True, True, False, True]
    assert stands_in_physics(env, [2, 0], workers=1).tolist() == [False, True]


def test_an_empty_bin_stands() -> None:
    env = bins([0])
    env.reset()
    assert stands_in_physics(env, [0]).tolist() == [True]


def test_a_pallet_has_no_walls() -> None:
    assert [plan_of(empty_bins(1, walls=walls), 0).walls for walls in (True, False)] == [True, False]
