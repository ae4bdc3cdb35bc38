"""Results of episodes.

Verdicts placement by placement, and draws that can be repeated.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from tests.policies.packing.packer_scenes import narrow
from tests.training.tiny import packing_env
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.memory import LiveBytes
from torchrl_gpu.envs.packing.items import ProceduralSolids, RandomBoxes
from torchrl_gpu.evaluation.batch_size import episode_bytes
from torchrl_gpu.evaluation.packing.episodes import PackedBins, PackingResults, evaluate, mean_occupancy
from torchrl_gpu.evaluation.packing.suite import PackingSuite
from torchrl_gpu.policies.packing import HierarchicalPacker, RandomLegal
from torchrl_gpu.policies.packing.heuristics import irregular_baselines
from torchrl_gpu.policies.policy import Policy


def solids_env(num_envs: int = 4) -> PackingEnv:
    """Few solids, in bins that some of them overfill, and placements that are judged."""
    changes = {"bin_size": (0.2, 0.2, 0.2), "resolution": 20, "grid_step": 4, "num_items": 8, "visible_items": 2}
    return packing_env(
        num_envs, items=ProceduralSolids(8), orientations="yaw", stability_judge="com", order="box", **changes
    )


def packed(values: torch.Tensor, **changes: Any) -> PackingResults:
    names = ("utilization", "num_packed", "compactness", "pyramidality")
    return PackingResults(**{name: values for name in names} | changes)


def test_columns_by_hand() -> None:
    values = torch.tensor([0.5, 0.25])
    results = packed(values, num_packed=values * 8, compactness=values / 2, pyramidality=values / 4)
    assert list(results.columns()) == ["C", "P", "objects", "utilization"]
    judged = dataclasses.replace(results, stable=torch.tensor([[1, 0], [1, -1]]))
    assert list(judged.columns(values)) == ["C", "P", "S com", "S physics", "objects", "utilization"]
    assert judged.columns()["S com"].tolist() == [0.5, 1.0]
    assert judged.columns()["C"].tolist() == [0.25, 0.125]


def test_the_share_that_is_stable_by_hand() -> None:
    one = torch.ones(3)
    stable = torch.tensor([[1, 0, 1, 1], [0, -1, -1, -1], [-1, -1, -1, -1]], dtype=torch.int8)
    results = packed(one, stable=stable)
    assert results.stability is not None
    # An empty bin is stable.
    assert results.stability.tolist() == [0.75, 0.0, 1.0]
    assert results.score("someone").stability == pytest.approx((0.75 + 0 + 1) / 3)


def test_mean_occupancy_by_hand() -> None:
    # Boxes of 2 × 2 × 2 cells in a bin of 4 × 4 cells.
    env = packing_env(2, bin_size=(4.0, 4.0, 4.0), resolution=4, items=RandomBoxes(2, 2), num_items=3, visible_items=1)
    placements = torch.zeros(2, 3, 4, dtype=torch.int32)
    # The second box hangs over by half, so that 2 × 1 × 2 cells are lost below it.
    placements[0, 1, 2] = 1
    placement_z = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    results = packed(
        torch.zeros(2), num_packed=torch.tensor([2.0, 0.0]), placements=placements, placement_z=placement_z
    )
    found = mean_occupancy(PackedBins(env, results))
    # 8 of 8, then 16 of 4 + 16; a bin without boxes has 0.
    assert found.tolist() == pytest.approx([(1 + 16 / 20) / 2, 0])


def test_every_placement_has_the_verdict_of_its_step() -> None:
    env, verdicts = solids_env(), []
    inner = RandomLegal(env)

    def watching(state: TensorDictBase) -> TensorDictBase:
        verdicts.append((env.num_packed.clone(), env.state.stable.clone()))
        return inner(state)

    results = evaluate(env, watching)
    verdicts.append((env.num_packed.clone(), env.state.stable.clone()))
    assert results.stable is not None
    assert torch.equal((results.stable >= 0).sum(1).float(), results.num_packed)
    for step, ((before, _), (after, stable)) in enumerate(itertools.pairwise(verdicts)):
        expected = torch.where(after > before, stable.to(torch.int8), -1)
        assert torch.equal(results.stable[:, step], expected)
    assert {0, 1} <= set(results.stable.unique().tolist())


def test_boxes_are_not_judged() -> None:
    env = packing_env(2)
    results = evaluate(env, RandomLegal(env))
    assert results.stable is None
    assert "stability" not in results.scores()


def test_draws_repeat_and_leave_the_generator_alone() -> None:
    env = packing_env(6)
    torch.manual_seed(1)
    first = evaluate(env, RandomLegal(env))
    drawn = torch.rand(3)
    torch.manual_seed(2)
    assert torch.equal(evaluate(env, RandomLegal(env)).utilization, first.utilization)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), drawn)
    other = env.like(6, first_env=6)
    assert not torch.equal(evaluate(other, RandomLegal(other)).utilization, first.utilization)


def scores_of(results: PackingResults) -> dict[str, torch.Tensor]:
    assert results.stable is not None
    assert results.placements is not None
    assert results.placement_z is not None
    drawn = {"placements": results.placements, "placement_z": results.placement_z, "stable": results.stable}
    return results.per_episode() | drawn


def packers(env: PackingEnv) -> dict[str, Policy]:
    networks = narrow()
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in networks.parameters():
            weights.add_(torch.randn_like(weights), alpha=0.1)
    # Sums in another order, as in another batch, must not decide between equals.
    for network in networks.children():
        network.register_forward_hook(lambda module, given, came: came.mul(2**10).round().div(2**10))
    packer = HierarchicalPacker(env, networks, view_cells=16)
    drawing = {"random legal": RandomLegal(env), "drawn items": packer.choosing("random", "learned")}
    return irregular_baselines(env, packer) | drawing


@pytest.mark.parametrize("name", ["manager + worker", "random legal", "drawn items"])
def test_the_same_packings_whatever_the_batch(name: str) -> None:
    whole = solids_env(8)
    policy = packers(whole)[name]
    expected = scores_of(evaluate(whole, policy))
    assert len(expected["utilization"].unique()) > 4
    found = scores_of(PackingSuite(whole, False, 8, 3).play(policy))
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_episodes_differ_and_begin_at_the_first_environment() -> None:
    env = solids_env(8)
    found = evaluate(env, RandomLegal(env))
    assert len(found.utilization.unique()) > 4
    later = PackingSuite(env.like(3, first_env=4), False, 4, 3)
    assert torch.equal(later.play(RandomLegal(env)).utilization, found.utilization[4:])
    assert later.env.first_env == 4


def test_bins_beyond_the_last_episode_are_left_empty() -> None:
    env = packing_env(4)
    found = evaluate(env, RandomLegal(env), 3)
    assert env.num_packed[3] == 0
    assert (env.num_packed[:3] > 0).all()
    assert found.utilization.shape == found.num_packed.shape == (3,)
    # Each call decides for all four rows.
    assert found.decisions % 4 == 0
    assert found.decisions >= 4 * found.num_packed.max()


def test_times_are_joined_by_hand() -> None:
    one, deep = torch.ones(1), torch.ones(1, 2, 4)
    given = {"placements": deep, "placement_z": deep[..., 0]}
    parts = [packed(one, seconds=each, decisions=10, decision_s=0.02 * each, **given) for each in (1.0, 3.0)]
    joined = PackingResults.join(parts)
    assert (joined.decision_ms, joined.seconds, joined.decisions) == (4.0, 4.0, 20)
    assert joined.stable is None
    assert joined.utilization.shape == (2,)


def test_verdicts_of_batches_of_other_lengths_are_joined() -> None:
    short, long = torch.ones(1, 2, dtype=torch.int8), torch.zeros(2, 3, dtype=torch.int8)
    joined = PackingResults.join([packed(torch.ones(len(each)), stable=each) for each in (short, long)])
    assert joined.stable is not None
    assert joined.stable.tolist() == [[1, 1, -1], [0, 0, 0], [0, 0, 0]]


def test_memory_does_not_grow_with_the_batches() -> None:
    env = solids_env(2)
    policy = packers(env)["pile values"]
    per_episode, peaks = episode_bytes(env, policy), []
    for number in (2, 4):
        suite = PackingSuite(env, False, number, 2)
        with LiveBytes() as counter:
            results = suite.play(policy)
        peaks.append(counter.peak)
    kept = sum(value.nbytes for value in scores_of(results).values())
    assert peaks[1] < peaks[0] + 3 * kept
    # As the estimate says.
    assert peaks[0] < 2 * per_episode
