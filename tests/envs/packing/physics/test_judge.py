"""The last placement of each bin, judged with what lies below held fast."""

from __future__ import annotations

import pytest
import torch

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.envs.packing.physics import PhysicsJudge, stands_in_physics

pytest.importorskip("mujoco")


def bins(second: list[int]) -> PackingEnv:
    """Bins of 6 cells a side, 5 cm each, with a cube of 3 cells in the corner and another at some x."""
    env = PackingEnv(
        len(second),
        bin_size=(0.3, 0.3, 0.3),
        resolution=6,
        items=RandomBoxes(3, 3),
        orientations="fixed",
        device="cpu",
        seed=0,
    )
    current = env.reset()
    for gx in ([0] * len(second), second):
        step = env.step(current.set("action", torch.tensor(gx) * env.grid[1]))
        current = step["next"].exclude("reward")
    return env


def test_the_last_item_of_each_bin_is_judged() -> None:
    env = bins([0, 1, 2, 3])  # on top; a third over the edge; two thirds over it; beside, on the floor
    assert env.num_packed.tolist() == [2, 2, 2, 2]
    assert stands_in_physics(env, [0, 1, 2, 3]).tolist() == [True, True, False, True]
    assert stands_in_physics(env, [2, 0], workers=1).tolist() == [False, True]


def test_an_empty_bin_stands() -> None:
    env = bins([0])
    env.reset()
    assert stands_in_physics(env, [0]).tolist() == [True]


def test_only_bins_that_were_given_an_item_are_judged() -> None:
    env = bins([0, 1, 2, 3])
    stands = PhysicsJudge(workers=1)(env, torch.tensor([True, False, True, False]))
    assert stands.dtype == torch.bool
    assert stands.tolist() == [True, False, False, False]
    assert not PhysicsJudge()(env, torch.zeros(4, dtype=torch.bool)).any()
