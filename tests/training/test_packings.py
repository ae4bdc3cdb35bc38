"""What is kept of packings: verdicts placement by placement, and draws that can be repeated."""

from __future__ import annotations

import itertools

import pytest
import torch
from tensordict import TensorDictBase

from tests.training.tiny import packing_env
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.policies.packing import RandomLegal
from torchrl_gpu.training.packings import Packings, pack


def solids_env(num_envs: int = 4) -> PackingEnv:
    """Few solids, in bins that some of them overfill, and placements that are judged."""
    changes = {"bin_size": (0.2, 0.2, 0.2), "resolution": 20, "grid_step": 4, "num_items": 8, "visible_items": 2}
    return packing_env(num_envs, items=ProceduralSolids(8), orientations="yaw", judge="com", **changes)


def test_the_share_that_stands_by_hand() -> None:
    one = torch.ones(3)
    stands = torch.tensor([[1, 0, 1, 1], [0, -1, -1, -1], [-1, -1, -1, -1]], dtype=torch.int8)
    packings = Packings(one, one, one, one, 1.0, 1.0, stands)
    assert packings.stability is not None
    assert packings.stability.tolist() == [0.75, 0.0, 1.0]  # an empty bin stands
    assert packings.score("someone").stability == pytest.approx((0.75 + 0 + 1) / 3)


def test_every_placement_has_the_verdict_of_its_step() -> None:
    env, verdicts = solids_env(), []
    inner = RandomLegal(env)

    def watching(state: TensorDictBase) -> TensorDictBase:
        verdicts.append((env.num_packed.clone(), env.state.stable.clone()))
        return inner(state)

    packings = pack(env, watching)
    verdicts.append((env.num_packed.clone(), env.state.stable.clone()))
    assert packings.stands is not None
    assert torch.equal((packings.stands >= 0).sum(1).float(), packings.num_packed)
    for step, ((before, _), (after, stable)) in enumerate(itertools.pairwise(verdicts)):
        expected = torch.where(after > before, stable.to(torch.int8), -1)
        assert torch.equal(packings.stands[:, step], expected)
    assert {0, 1} <= set(packings.stands.unique().tolist())


def test_boxes_are_not_judged() -> None:
    env = packing_env(2)
    packings = pack(env, RandomLegal(env))
    assert packings.stands is None
    assert "stability" not in packings.scores()


def test_draws_repeat_and_leave_the_generator_alone() -> None:
    env = packing_env(6)
    torch.manual_seed(1)
    first = pack(env, RandomLegal(env))
    drawn = torch.rand(3)
    torch.manual_seed(2)
    assert torch.equal(pack(env, RandomLegal(env)).utilization, first.utilization)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), drawn)
    other = env.like(6, first_env=6)
    assert not torch.equal(pack(other, RandomLegal(other)).utilization, first.utilization)


def test_time_runs() -> None:
    env = packing_env(2)
    packings = pack(env, RandomLegal(env))
    assert packings.seconds > 0
    assert 1e-3 * packings.decision_ms * packings.num_packed.sum() <= packings.seconds
