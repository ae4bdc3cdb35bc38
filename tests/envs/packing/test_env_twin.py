"""Parity of the whole environment with its twin, over full episodes of legal and illegal actions."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDictBase

from tests.envs.packing.settings import SETTINGS, legal_action, packing
from tests.envs.packing.twin import Twin
from tests.tolerances import assert_near

STEPS = 40


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_twin_goes_the_same_way(setting: str) -> None:
    num_envs = 2 if "irregular" in setting else 3
    steps = 24 if "irregular" in setting else STEPS
    env = packing(setting, num_envs)
    twins = [Twin(env, n) for n in range(num_envs)]
    generator = torch.Generator().manual_seed(1)
    current, restarts = env.reset(), 0
    for turn in range(steps):
        action = legal_action(current["action_mask"], generator)
        if turn % 13 == 12:  # any action, most often an illegal one
            action = torch.randint(-1, env.num_actions + 1, (num_envs,), generator=generator)
        step, current = env.step_and_maybe_reset(current.set("action", action))
        outcome = [twin.step(int(a)) for twin, a in zip(twins, action, strict=True)]
        assert_near(step["next", "reward"], torch.tensor(outcome, dtype=torch.float32)[:, :1])
        assert step["next", "done"].flatten().tolist() == [done for _, done in outcome]
        assert_agree(step["next"], twins)
        for twin, (_, done) in zip(twins, outcome, strict=True):
            if done:
                twin.restart()
                restarts += 1
        assert_agree(current, twins)
    assert restarts >= num_envs


def assert_agree(seen: TensorDictBase, twins: list[Twin]) -> None:
    """What the environment observes is what its twins see."""
    for n, twin in enumerate(twins):
        assert torch.equal(seen["box_heightmap"][n], torch.from_numpy(twin.heights))
        assert torch.equal(seen["legal_mask"][n], torch.from_numpy(twin.legal))
        assert torch.equal(seen["action_mask"][n], torch.from_numpy(twin.legal).flatten())
        padding = [-1] * (seen["item_id"].shape[1] - len(twin.visible))
        assert seen["item_id"][n].tolist() == twin.visible + padding
        assert seen["num_packed"][n].item() == twin.num_packed
        assert seen["utilization"][n].item() == pytest.approx(twin.volume / twin.bin_.volume, abs=1e-5)
        z_map = seen.get("z_map", None)
        assert z_map is None or torch.equal(z_map[n], torch.from_numpy(twin.z_map))
