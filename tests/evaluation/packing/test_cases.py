"""Cases that do not depend on how they are batched, latencies, and verdicts side by side."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.policies.packing.test_contestants import solids_env
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.live_bytes import LiveBytes
from torchrl_gpu.evaluation.packing.cases import Agreement, Outcome, agreement_data, latencies, pack_cases
from torchrl_gpu.evaluation.packing.episodes import Packings, pack
from torchrl_gpu.policies.packing import DeepestBottomLeft, RandomLegal, VolumeSorted
from torchrl_gpu.policies.policy import Policy


def policies(env: PackingEnv) -> dict[str, Policy]:
    return {"deepest": VolumeSorted(env, DeepestBottomLeft(env), by="box"), "random": RandomLegal(env)}


def judged(num_envs: int) -> PackingEnv:
    return solids_env().like(num_envs, stability_judge="com")


def test_cases_do_not_depend_on_the_batch() -> None:
    whole, parts = judged(5), judged(2)
    at_once = pack_cases(whole, policies(whole), 5, 0)["deepest"].columns()
    in_parts = pack_cases(parts, policies(parts), 5, 0)["deepest"].columns()
    for name in ("C", "P", "S com", "objects", "utilization"):
        assert torch.equal(at_once[name], in_parts[name])
        assert len(at_once[name]) == 5
    assert (len(at_once["objects/s"]), len(in_parts["objects/s"])) == (1, 3)
    packings = pack(whole, policies(whole)["deepest"])
    assert torch.equal(at_once["C"], packings.compactness)
    assert len(at_once["C"].unique()) > 1


def test_draws_do_not_depend_on_the_batch() -> None:
    at_once, in_parts = (
        pack_cases(env, policies(env), 5, 0)["random"].columns()["C"] for env in (judged(5), judged(2))
    )
    assert torch.equal(at_once, in_parts)


def test_memory_does_not_grow_with_the_batches() -> None:
    """Environments are in a cycle of TorchRL's: one for each batch would stay until the collector comes round."""
    env, peaks = judged(1), []
    deepest = {"deepest": policies(env)["deepest"]}
    pack(env, deepest["deepest"])  # what is made once
    gc.collect()
    gc.disable()
    try:
        for cases in (1, 5):
            with LiveBytes() as counter:
                pack_cases(env, deepest, cases, 0)
            peaks.append(counter.peak)
    finally:
        gc.enable()
    assert peaks[1] < 1.05 * peaks[0]


def test_methods_see_the_same_cases() -> None:
    env = judged(3)
    twice = {"a": DeepestBottomLeft(env), "b": DeepestBottomLeft(env)}
    outcomes = pack_cases(env, twice, 4, 0)
    assert torch.equal(outcomes["a"].columns()["C"], outcomes["b"].columns()["C"])


def test_rates_by_hand() -> None:
    two = torch.tensor([3.0, 5.0])
    outcome = Outcome([Packings(two, two, two, two, 1.0, seconds=4.0), Packings(two, two, two, two, 1.0, seconds=2.0)])
    assert outcome.columns()["objects/s"].tolist() == [2.0, 4.0]
    assert outcome.columns()["objects"].tolist() == [3.0, 5.0, 3.0, 5.0]


def test_a_latency_for_each_case() -> None:
    env, said = judged(2), []
    found = latencies(env, policies(env), 3, said.append)
    assert set(found) == {"deepest", "random"}
    assert all(len(values) == 3 and (values > 0).all() for values in found.values())
    assert said[:2] == ["deepest, timed alone", "random, timed alone"]  # in turns
    assert len(said) == 2 * (1 + 3)


def test_agreement_by_hand() -> None:
    agreement = Agreement()
    com = torch.tensor([True, True, True, False, False])
    physics = torch.tensor([True, True, False, True, False])
    agreement.count(com, physics)
    agreement.count(com[:1], physics[:1])
    assert agreement == Agreement(both_hold=3, only_com_holds=1, only_physics_holds=1, none_holds=1)
    assert (agreement.placements, agreement.share) == (6, pytest.approx(4 / 6))
    assert Agreement().share is None


def test_physics_of_the_first_cases() -> None:
    pytest.importorskip("mujoco")
    env = judged(2)
    outcomes = pack_cases(env, {"random": RandomLegal(env)}, 4, 3)
    outcome = outcomes["random"]
    columns = outcome.columns()
    assert len(columns["S physics"]) == 3
    assert list(columns) == ["C", "P", "S com", "S physics", "objects", "utilization", "objects/s"]
    assert outcome.agreement.placements == int(columns["objects"][:3].sum())
    counted = outcome.agreement
    shares = [(counted.both_hold + counted.only_com_holds), (counted.both_hold + counted.only_physics_holds)]
    placed = columns["objects"][:3]
    assert shares[0] == pytest.approx((columns["S com"][:3] * placed).sum().item())
    assert shares[1] == pytest.approx((columns["S physics"] * placed).sum().item())
    (row,) = agreement_data(outcomes)
    assert row == {"method": "random", "share": counted.share, "placements": counted.placements, **vars(counted)}
