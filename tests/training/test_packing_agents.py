"""Agents that pack bins choose what is legal; priorities and their weights by hand."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tensordict import TensorDictBase
from torch import Tensor

from tests.training import tiny
from tests.training.resuming import differences
from tests.training.tiny import dqn, fit
from torchrl_gpu.policies import (
    IQN,
    AgentSpace,
    EpsilonGreedy,
    PlacementAtoms,
    PlacementQuantiles,
    Rainbow,
    SoftTargets,
)
from torchrl_gpu.training import OffPolicy

TARGETS = {"targets": SoftTargets(0.1)}


def rainbow(space: AgentSpace, **changes: Any) -> Rainbow:
    network, exploration = partial(PlacementAtoms, num_atoms=7, channels=4, blocks=1), EpsilonGreedy(0.5, 0.0, 400)
    arguments = {"v_min": 0.0, "v_max": 1.0, "exploration": exploration}
    return Rainbow(space, network=network, **{**arguments, **TARGETS, **changes})


def iqn(space: AgentSpace, **changes: Any) -> IQN:
    network = partial(PlacementQuantiles, channels=4, blocks=1)
    arguments = {"num_taus": 4, "acting_taus": 4, "exploration": EpsilonGreedy(frames=400)}
    return IQN(space, network=network, **{**arguments, **TARGETS, **changes})


AGENTS = {"DQN": dqn, "Rainbow": rainbow, "IQN": iqn}
every = pytest.mark.parametrize("name", AGENTS)


def module(name: str, **changes: Any) -> OffPolicy:
    return tiny.module(make=AGENTS[name], **changes)


@every
def test_its_policy_chooses_what_is_legal(tmp_path: Path, name: str) -> None:
    made = fit(module(name), tmp_path, 2)
    env = made.env.like(6, seed=8)
    steps = env.rollout(12, made.policy_for(env), break_when_any_done=False)
    going_on = steps["action_mask"].flatten(2).any(-1)
    legal = steps["action_mask"].flatten(2).gather(2, steps["action"].unsqueeze(-1)).squeeze(-1)
    assert going_on.all()
    assert legal.all()


def spied(made: OffPolicy) -> list[tuple[float, TensorDictBase]]:
    seen, losses = [], made.agent.losses

    def watched(batch: TensorDictBase) -> dict[str, Tensor]:
        out = losses(batch)
        seen.append((made.replay.sampler.beta, batch.clone()))
        return out

    made.agent.losses = watched  # type: ignore[method-assign]
    return seen


# From 0.4 to 1 in 4 updates: 0.6 · 1/4 more with each, and then it stays; as it does where nothing is given.
@pytest.mark.parametrize(("beta_updates", "exponents"), [(4, [0.4, 0.55, 0.7, 0.85, 1.0, 1.0]), (None, [0.4] * 6)])
def test_the_exponent_goes_to_one_by_hand(tmp_path: Path, beta_updates: int | None, exponents: list[float]) -> None:
    made = module("DQN", prioritized=True, beta=0.4, beta_updates=beta_updates)
    seen = spied(made)
    fit(made, tmp_path, 6)
    assert [beta for beta, _ in seen] == pytest.approx(exponents)


@every
def test_weights_and_priorities_are_those_of_the_definition(tmp_path: Path, name: str) -> None:
    made = module(name, prioritized=True, alpha=0.5, beta_updates=4, updates_per_step=4)
    seen, chances = spied(made), []
    sample = made.on_train_start

    def started() -> None:
        sample()
        replay = made.replay
        draw = replay.sampler.sample

        def drawn(storage: Any, number: int) -> Any:
            priority = replay.sampler.priority
            chances.append((len(replay), priority / priority.sum()))
            return draw(storage, number)

        replay.sampler.sample = drawn  # type: ignore[method-assign]

    made.on_train_start = started  # type: ignore[method-assign]
    fit(made, tmp_path, 8)
    assert len(seen) == len(chances) == 8
    for (beta, batch), (size, chance) in zip(seen, chances, strict=True):
        weight = (size * chance[batch["index"]]) ** -beta
        assert batch["priority_weight"].tolist() == pytest.approx((weight / weight.max()).tolist(), rel=1e-5)
    _, batch = seen[-1]  # nothing was written after the last update
    wanted = (batch["td_error"].flatten().double() + 1e-3) ** 0.5
    for place in set(batch["index"].tolist()):  # drawn twice with other τ, it has two errors, of which either will do
        own = wanted[batch["index"] == place]
        assert (own - made.replay.sampler.priority[place]).abs().min() < 1e-6


@every
def test_weights_of_priorities_count_in_the_loss(tmp_path: Path, name: str) -> None:
    def weights_after(exponent: float) -> dict[str, Tensor]:
        return fit(module(name, prioritized=True, beta=exponent), tmp_path, 4).agent.state_dict()

    assert differences(weights_after(0.0), weights_after(1.0)) != []
