"""The conditions of every evaluation.

Joining batches is tested where there are results to join.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchrl.envs.utils import ExplorationType, exploration_type

from tests.evaluation.counting_env import CountingEnv
from torchrl_gpu.evaluation import results as module
from torchrl_gpu.evaluation.results import DecisionClock, evaluation
from torchrl_gpu.policies.exploration import uniform


def test_draws_are_the_same_every_time_and_leave_no_trace() -> None:
    env = CountingEnv(3, seed=1)
    drawn = []
    for other in (1, 2):
        torch.manual_seed(other)
        before = torch.get_rng_state()
        with evaluation(env, lambda seen: seen):
            drawn.append((torch.rand(2), uniform((3, 2), env.device)))
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one, other) for one, other in zip(*drawn, strict=True))
    with evaluation(env.like(3, seed=2), lambda seen: seen):
        assert not torch.equal(torch.rand(2), drawn[0][0])


def test_a_row_draws_by_its_number() -> None:
    with evaluation(CountingEnv(4, seed=1), lambda seen: seen):
        whole = uniform((4, 2), torch.device("cpu"))
    with evaluation(CountingEnv(2, seed=1, first_env=2), lambda seen: seen):
        assert torch.equal(uniform((2, 2), torch.device("cpu")), whole[2:])


def test_a_module_acts_in_eval_mode_without_gradients_and_greedily() -> None:
    policy = nn.Linear(1, 1).train()
    env = CountingEnv(2, seed=1)
    env.rand_step(env.reset())
    with evaluation(env, policy) as current:  # type: ignore[arg-type]
        assert not policy.training
        assert not torch.is_grad_enabled()
        assert exploration_type() is ExplorationType.DETERMINISTIC
        # It began anew.
        assert current["left"].flatten().tolist() == [2 + (1 + 7 * row) % 4 for row in (0, 1)]
    assert policy.training


def test_times_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 11.0, 11.5, 20.0, 22.0, 30.0])
    monkeypatch.setattr(module, "now", lambda device: next(times))
    clock = DecisionClock(torch.device("cpu"))
    assert clock.time(3, lambda a, b: a + b, 1, 2) == 3
    clock.time(2, lambda: None)
    assert clock.times() == {"decisions": 5, "decision_s": 2.5, "seconds": 20.0}
