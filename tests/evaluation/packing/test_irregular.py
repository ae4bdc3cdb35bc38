"""Latencies, and verdicts side by side."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.policies.packing.test_contestants import solids_env
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.evaluation.packing.irregular import Agreement, drop, latencies
from torchrl_gpu.evaluation.packing.suite import PackingSuite
from torchrl_gpu.policies.packing import DeepestBottomLeft, RandomLegal, VolumeSorted
from torchrl_gpu.policies.policy import Policy


def policies(env: PackingEnv) -> dict[str, Policy]:
    return {"deepest": VolumeSorted(env, DeepestBottomLeft(env), by="box"), "random": RandomLegal(env)}


def judged(num_envs: int) -> PackingEnv:
    return solids_env().like(num_envs, judge="com")


def test_a_latency_for_each_case() -> None:
    env, said = judged(2), []
    found = latencies(env, policies(env), 3, said.append)
    assert set(found) == {"deepest", "random"}
    assert all(len(values) == 3 and (values > 0).all() for values in found.values())
    assert said[:2] == ["deepest, timed alone", "random, timed alone"]  # in turns
    assert len(said) == 2 * (1 + 3)


def test_no_latency_where_none_is_asked_for() -> None:
    env = judged(1)
    assert [len(values) for values in latencies(env, policies(env), 0).values()] == [0, 0]


def test_agreement_by_hand() -> None:
    agreement = Agreement()
    com = torch.tensor([True, True, True, False, False])
    physics = torch.tensor([True, True, False, True, False])
    agreement.count(com, physics)
    agreement.count(com[:1], physics[:1])
    assert agreement == Agreement(both_hold=3, only_com_holds=1, only_physics_holds=1, none_holds=1)
    assert (agreement.data()["placements"], agreement.data()["share"]) == (6, pytest.approx(4 / 6))
    assert Agreement().data()["share"] is None


def test_physics_of_the_first_cases() -> None:
    pytest.importorskip("mujoco")
    suite = PackingSuite(judged(1), False, 4, 2)
    results = suite.play(RandomLegal(suite.env))
    shares, counted = drop(suite.env, results, 3)
    assert len(shares) == 3
    placed, stands = results.num_packed[:3], results.stability
    assert stands is not None
    assert counted.data()["placements"] == int(placed.sum())
    assert counted.both_hold + counted.only_com_holds == pytest.approx((stands[:3] * placed).sum().item())
    assert counted.both_hold + counted.only_physics_holds == pytest.approx((shares * placed).sum().item())


def test_steps_that_pass_an_item_over_make_no_placement() -> None:
    pytest.importorskip("mujoco")
    env = judged(1).like(1, visible_items=1, skip_unplaceable=True, num_items=12, judge="com")
    results = PackingSuite(env, False, 1).play(RandomLegal(env))
    stands = results.stands
    assert stands is not None
    late = torch.cat((torch.full_like(stands[:, :1], -1), stands), 1)  # as if the first item had been passed over
    verdicts = [drop(env, dataclasses.replace(results, stands=each), 1)[1] for each in (stands, late)]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0].data()["placements"] == results.num_packed.sum()
