"""As many episodes side by side as there is memory for, and the bytes of one."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDictBase

from tests.training.tiny import packing_env
from torchrl_gpu.evaluation.batch_size import decision_bytes, episode_bytes, num_side_by_side
from torchrl_gpu.policies.packing import RandomLegal

CPU, GPU = torch.device("cpu"), torch.device("cuda")
GIB = 1 << 30


@pytest.mark.parametrize(
    ("episodes", "each", "device", "free", "expected"),
    [
        # 17 fit into 1 GiB: three batches of 16.
        (48, 60 << 20, CPU, 16 * GIB, 16),
        # 8 fit into half of it.
        (48, 60 << 20, CPU, GIB, 8),
        (48, 60 << 20, GPU, 16 * GIB, 48),
        # 136 fit: two batches.
        (200, 60 << 20, GPU, 16 * GIB, 100),
        (1000, 1 << 10, CPU, 16 * GIB, 1000),
        # One is always tried.
        (5, 4 * GIB, CPU, GIB, 1),
    ],
)
def test_numbers_by_hand(episodes: int, each: int, device: torch.device, free: int, expected: int) -> None:
    assert num_side_by_side(episodes, each, device, free) == expected


def test_fewer_are_played_where_fewer_are_faster() -> None:
    assert num_side_by_side(48, 60 << 20, CPU, 16 * GIB, most_on_cpu=GIB // 4) == 4
    assert num_side_by_side(48, 60 << 20, GPU, 16 * GIB, most_on_cpu=GIB // 4) == 48


def test_bytes_of_a_decision_by_hand() -> None:
    env = packing_env(3)

    def policy(state: TensorDictBase) -> TensorDictBase:
        # 8 times the bytes, and twice that.
        wide = state["legal_mask"].double().repeat(2, *[1] * 4)[: len(state)]
        return state.set("action", wide.flatten(1).argmax(1))

    maps = env.num_actions
    assert 24 * maps <= decision_bytes(env, policy) <= 24 * maps + 64
    assert episode_bytes(env, policy) == env.bytes_per_env + decision_bytes(env, policy)


def test_what_is_made_once_does_not_count() -> None:
    env = packing_env(1)

    class Tables:
        made: torch.Tensor | None = None

        def __call__(self, state: TensorDictBase) -> TensorDictBase:
            if self.made is None:
                self.made = torch.zeros(1_000_000)
            return state.set("action", torch.zeros(len(state), dtype=torch.int64))

    assert decision_bytes(env, Tables()) < 1000


def test_counting_draws_nothing() -> None:
    env = packing_env(2)
    state = torch.get_rng_state()
    decision_bytes(env, RandomLegal(env))
    assert torch.equal(torch.get_rng_state(), state)
