"""What is shown of a bin is true of it, and looking changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.training.tiny import packing_env
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing import viewer
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.envs.viewable import viewable
from torchrl_gpu.policies.packing import RandomLegal

pytest.importorskip("cv2")

REWARDS = [{"reward": "utilization"}, {"reward": "objective"}, {"reward": "objective", "judge": "com"}]


@pytest.mark.parametrize("changes", REWARDS, ids=str)
def test_the_return_is_the_sum_of_the_rewards(changes: dict[str, Any]) -> None:
    env = packing_env(6, **changes)
    view, policy, total = viewable(env), RandomLegal(env), torch.zeros(6)
    current, ended = env.reset(), 0
    torch.manual_seed(0)
    for _ in range(40):
        stepped, current = env.step_and_maybe_reset(policy(current))
        done = stepped["next", "done"][:, 0]
        total = torch.where(done, 0.0, total + stepped["next", "reward"][:, 0])
        ended += int(done.sum())
        figures = view.figures()
        torch.testing.assert_close(figures["return"], total, atol=1e-5, rtol=0)
        assert torch.equal(figures["step"], current["step_count"][:, 0])
        torch.testing.assert_close(figures["utilization"], current["utilization"][:, 0])
        assert int(figures["episode"].sum()) == 6 + ended
    assert ended > 6


def test_looking_changes_nothing() -> None:
    env = packing_env(4)
    view, policy = viewable(env), RandomLegal(env)
    current = env.reset()
    for _ in range(3):
        _, current = env.step_and_maybe_reset(policy(current))
    before, random = env.state_dict(), torch.get_rng_state()
    view.figures()
    view.pictures([0, 3], 64, 48)
    assert torch.equal(random, torch.get_rng_state())
    after = env.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def packed(steps: int, **changes: Any) -> PackingEnv:
    env = packing_env(3, **changes)
    policy, current = RandomLegal(env), env.reset()
    for _ in range(steps):
        _, current = env.step_and_maybe_reset(policy(current))
    return env


def test_boxes_lie_where_the_viewer_draws_them() -> None:
    torch.manual_seed(1)
    env = packed(3)
    drawn = viewable(env).pictures([1], 160, 120)
    traced = viewer.render(env, 1, width=160, height=120).numpy().astype(int)
    assert drawn.shape == (1, 120, 160, 3)
    assert drawn.dtype == np.uint8
    assert np.abs(drawn[0].astype(int) - traced).mean() < 6
    others = viewable(env).pictures([0], 160, 120)[0].astype(int)
    assert np.abs(others - traced).mean() > 12


def test_solids_lie_where_the_viewer_draws_them() -> None:
    items = ProceduralSolids(num_objects=6, min_size=1.0, max_size=2.0, seed=1)
    torch.manual_seed(0)
    env = packed(4, resolution=40, items=items, num_items=6, include=())
    drawn = viewable(env).pictures([0, 2], 160, 120)
    traced = viewer.render(env, 2, width=160, height=120).numpy().astype(int)
    assert drawn.shape == (2, 120, 160, 3)
    assert drawn.dtype == np.uint8
    assert np.abs(drawn[1].astype(int) - traced).mean() < 6
    assert np.abs(drawn[0].astype(int) - traced).mean() > 9
