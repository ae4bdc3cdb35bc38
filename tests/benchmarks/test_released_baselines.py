"""Baselines with the candidates of released code."""

from __future__ import annotations

import torch

from benchmarks import released_baselines
from torchrl_gpu.evaluation.packing import evaluate
from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite


def test_least_surface_never_becomes_that_of_the_full_bin() -> None:
    env = ProtocolSuite("free125", device="cpu").like(24)
    spans, reaches = {}, {}
    for word in ("lsah", "lsah-corners"):
        evaluate(env, released_baselines.as_released(env, word))
        heights = env.state.heightmap
        spans[word] = (heights.amax(1) > 0).all(1) & (heights.amax(2) > 0).all(1)
        reaches[word] = heights.amax((1, 2)) > 9.5
        assert int(spans[word].sum()) > 20
    assert not bool((reaches["lsah"] & spans["lsah"]).any())
    assert int(reaches["lsah-corners"].sum()) > 8


def test_only_released_candidates_are_chosen() -> None:
    env = ProtocolSuite("discrete125", device="cpu").like(8)
    for word, candidates in released_baselines.RELEASED.items():
        if word == "bph":
            continue
        policy, allowed, shown = released_baselines.as_released(env, word), candidates(env), env.reset()
        for _ in range(4):
            among = (shown["legal_mask"] & allowed(shown)).flatten(1)
            chosen = policy(shown)["action"]
            assert torch.equal(chosen >= 0, among.any(1))
            assert bool(among.gather(1, chosen.clamp_min(0)[:, None])[chosen >= 0].all())
            shown = env.step_and_maybe_reset(shown)[1]
