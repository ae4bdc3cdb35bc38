"""What is kept of packings: verdicts placement by placement, and draws that can be repeated."""

from __future__ import annotations

import itertools

import pytest
import torch
from tensordict import TensorDictBase

from tests.policies.packing.packer_scenes import narrow
from tests.training.tiny import packing_env
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.live_bytes import LiveBytes
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.envs.packing.items.source import SameItems
from torchrl_gpu.evaluation.packing.episodes import Packings, pack, pack_episodes
from torchrl_gpu.evaluation.packing.side_by_side import episode_bytes
from torchrl_gpu.policies.packing import HierarchicalPacker, RandomLegal
from torchrl_gpu.policies.packing.contestants import irregular_contestants
from torchrl_gpu.policies.policy import Policy


def solids_env(num_envs: int = 4) -> PackingEnv:
    """Few solids, in bins that some of them overfill, and placements that are judged."""
    changes = {"bin_size": (0.2, 0.2, 0.2), "resolution": 20, "grid_step": 4, "num_items": 8, "visible_items": 2}
    return packing_env(
        num_envs, items=ProceduralSolids(8), orientations="yaw", stability_judge="com", order="box", **changes
    )


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


# -- batches --


def scores_of(packings: Packings) -> dict[str, torch.Tensor]:
    assert packings.stands is not None
    assert packings.placements is not None
    assert packings.placement_z is not None
    drawn = {"placements": packings.placements, "placement_z": packings.placement_z, "stands": packings.stands}
    return packings.per_episode() | drawn


def packers(env: PackingEnv) -> dict[str, Policy]:
    """Rules, draws, and networks with weights that decide something."""
    networks = narrow()
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in networks.parameters():
            weights.add_(torch.randn_like(weights), alpha=0.1)
    packer = HierarchicalPacker(env, networks, view_cells=16)
    drawing = {"random legal": RandomLegal(env), "drawn items": packer.choosing("random", "learned")}
    return irregular_contestants(env, packer) | drawing


@pytest.mark.parametrize("name", ["random", "manager + worker", "random legal", "drawn items"])
def test_the_same_packings_whatever_the_batch(name: str) -> None:
    whole = solids_env(8)
    policy = packers(whole)[name]
    expected = scores_of(pack(whole, policy))
    assert len(expected["utilization"].unique()) > 4
    for size in (2, 3):
        found = scores_of(pack_episodes(whole.like(size, items=SameItems(whole)), policy, 8))
        assert all(torch.equal(found[key], value) for key, value in expected.items()), size


def test_episodes_differ_and_begin_at_the_first_environment() -> None:
    env = solids_env(8)
    found = pack_episodes(env, RandomLegal(env), 8)
    assert len(found.utilization.unique()) > 4
    later = env.like(3, first_env=4)
    assert torch.equal(pack_episodes(later, RandomLegal(env), 4).utilization, found.utilization[4:])
    assert later.first_env == 4


def test_bins_beyond_the_last_episode_are_left_empty() -> None:
    env = packing_env(4)
    found = pack(env, RandomLegal(env), 3)
    assert env.num_packed[3] == 0
    assert (env.num_packed[:3] > 0).all()
    assert found.utilization.shape == found.num_packed.shape == (3,)
    assert found.decisions == found.num_packed.sum()  # none of theirs


def test_times_are_joined_by_hand() -> None:
    one, deep = torch.ones(1), torch.ones(1, 2, 4)
    parts = [
        Packings(one, one, one, one, ms, seconds, None, deep, deep[..., 0], decisions)
        for ms, seconds, decisions in ((2.0, 1.0, 30), (6.0, 3.0, 10))
    ]
    joined = Packings.joined(parts)
    assert (joined.decision_ms, joined.seconds, joined.decisions) == (3.0, 4.0, 40)
    assert joined.stands is None
    assert joined.utilization.shape == (2,)


def test_memory_does_not_grow_with_the_batches() -> None:
    env = solids_env(2)
    policy = packers(env)["manager + worker"]
    per_episode, peaks = episode_bytes(env, policy), []
    for number in (2, 6):
        with LiveBytes() as counter:
            packings = pack_episodes(env, policy, number)
        peaks.append(counter.peak)
    kept = sum(value.nbytes for value in scores_of(packings).values())
    assert peaks[1] < peaks[0] + 3 * kept
    assert peaks[0] < 2 * per_episode  # as was foreseen
