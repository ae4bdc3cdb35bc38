"""Random legal actions, and the episodes that both sides play."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchrl_gpu.bench.settings import episodes_of, make, random_legal


def test_random_legal_actions_are_legal_and_uniform() -> None:
    torch.manual_seed(0)
    mask = torch.tensor([0, 1, 0, 1, 1, 0], dtype=torch.bool).expand(6000, -1)
    counts = np.bincount(random_legal(mask).numpy(), minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    assert (np.abs(counts[[1, 3, 4]] - 2000) < 5 * 2000**0.5).all()


def test_rows_without_a_legal_action_stay_in_range() -> None:
    assert random_legal(torch.zeros(3, 4, dtype=torch.bool)).tolist() == [3, 3, 3]


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
