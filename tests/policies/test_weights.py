"""Weights from outside.

What is learned or drawn is in them, and what is set is not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.policies import checkpoints
from tests.policies.navigation_spaces import make, spec_for
from tests.training.resuming import check_checkpoint
from tests.training.tiny import module
from torchrl_gpu.policies import PolicyWrapper, load_policy
from torchrl_gpu.policies.weights import settings_in, without_memory


# Agents, how two of them are set, and what shows it.
@pytest.mark.parametrize(
    ("agent", "before", "now", "of"),
    [
        pytest.param("IQN", {"cvar": 0.25}, {"cvar": 0.75}, lambda it: it.scores.risk.level, id="cvar of IQN"),
        pytest.param("ACIQN", {"cvar": 0.25}, {"cvar": 0.75}, lambda it: it.risk.level, id="cvar of ACIQN"),
        pytest.param("SAC", {"alpha": 0.1}, {"alpha": 0.5}, lambda it: it.log_alpha, id="alpha"),
        pytest.param("Rainbow", {"v_min": -3.0}, {"v_min": -7.0}, lambda it: it.online.support, id="v_min"),
        pytest.param("Rainbow", {"v_max": 3.0}, {"v_max": 7.0}, lambda it: it.target.support, id="v_max of targets"),
        pytest.param(
            "DQN", {"gamma": 0.5}, {"gamma": 0.9}, lambda it: it.objective.value_estimator.gamma, id="gamma of DQN"
        ),
        pytest.param(
            "DDPG", {"gamma": 0.5}, {"gamma": 0.9}, lambda it: it.objective.value_estimator.gamma, id="gamma of DDPG"
        ),
        pytest.param(
            "DDPG",
            {"spec": spec_for("DDPG")},
            {"spec": type(spec_for("DDPG"))("v3", num_actions=None, bounds=(-3.0, 2.0))},
            lambda it: torch.stack([it.policy.module.squash.low, it.exploration.high]),
            id="bounds of DDPG",
        ),
    ],
)
def test_settings_are_those_of_the_run_that_goes_on(
    agent: str, before: dict[str, Any], now: dict[str, Any], of: Any
) -> None:
    saved, fresh = make(agent, **before), make(agent, seed=1, **now)
    wanted = of(fresh).clone()
    assert not torch.equal(of(saved), wanted)
    fresh.load_state_dict(saved.state_dict())
    assert torch.equal(of(fresh), wanted)
    older = {**saved.state_dict(), **{key: torch.zeros(2) for key in settings_in(saved)}}
    # Older checkpoints hold these entries.
    fresh.load_state_dict(older)
    assert torch.equal(of(fresh), wanted)
    PolicyWrapper(fresh).load_state_dict(
        {**PolicyWrapper(saved).state_dict(), **{key: torch.zeros(()) for key in settings_in(PolicyWrapper(saved))}}
    )
    assert torch.equal(of(fresh), wanted)


@pytest.mark.parametrize("kind", ["SAC navigates", "Rainbow packs", "IQN packs", "SAC watches"])
def test_a_policy_is_loaded_from_a_checkpoint_that_holds_settings(tmp_path: Path, kind: str) -> None:
    agent, init_args = checkpoints.EVERY[kind]()
    content = checkpoints.content_of(agent, init_args)
    added = {f"agent.{name}": torch.full((), 7.0) for name in settings_in(agent)}
    assert added
    torch.save(content, tmp_path / "new.ckpt")
    torch.save({**content, "state_dict": content["state_dict"] | added}, tmp_path / "old.ckpt")
    new = load_policy(tmp_path / "new.ckpt", "cpu").state_dict()
    old = load_policy(tmp_path / "old.ckpt", "cpu").state_dict()
    assert new.keys() == old.keys()
    assert all(torch.equal(new[name], old[name]) for name in new)


def test_a_run_goes_on_from_a_checkpoint_that_holds_settings(tmp_path: Path) -> None:
    made = module()
    added = {name: torch.full((), 0.5) for name in settings_in(made)}
    assert "agent.objective._value_estimator.gamma" in added
    torch.save({"state_dict": made.state_dict() | added}, tmp_path / "old.ckpt")
    check_checkpoint(tmp_path / "old.ckpt", made)
    made.load_state_dict(made.state_dict() | added)
    assert made.agent.objective.value_estimator.gamma == torch.tensor(0.99)


# -- sizes --


class Wide(nn.Module):
    """A product of vectors that is large."""

    def __init__(self) -> None:
        super().__init__()
        row = torch.zeros(2**15)
        self.outer = row[:, None] * row


def test_shapes_come_without_memory() -> None:
    made = without_memory(lambda: nn.Linear(10_000, 20_000), "test", 10**9)
    assert made.weight.is_meta
    assert made.weight.shape == (20_000, 10_000)


@pytest.mark.parametrize(
    ("make", "most", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(30, 30)), 1_000, "networks .*1,000 bytes"),
        (Wide, 10**9, "tensors .* bytes"),
        (lambda: nn.Sequential(*(nn.Linear(1, 1) for _ in range(10**9))), 10**9, "10,000 operators"),
    ],
)
def test_weights_that_are_too_large_are_refused(make: Any, most: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^test: .*{message}"):
        without_memory(make, "test", most)
