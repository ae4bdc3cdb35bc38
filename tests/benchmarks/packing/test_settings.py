"""The episodes that both sides of the benchmark play."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.packing.settings import episodes_of, make
from torchrl_gpu.policies.exploration import random_legal


def test_the_twin_plays_the_episodes_of_the_environment() -> None:
    env = make({"num_items": 20}, 3, "cpu")
    expected = episodes_of(env, 1, 3)
    torch.manual_seed(0)
    current: Any = env.reset()
    episode = position = 0
    while episode < len(expected):
        assert current["item_id"][1, 0] == expected[episode, position]
        current["action"] = random_legal(current["action_mask"])
        stepped, current = env.step_and_maybe_reset(current)
        done = bool(stepped["next", "done"][1])
        episode, position = (episode + 1, 0) if done else (episode, position + 1)
