"""The last placement of each bin, judged with what lies below held fast; by itself and inside the environment."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from tests.envs.packing.settings import assert_same, legal_action, packing, play
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.envs.packing.physics import plan_of, stands_in_physics

pytest.importorskip("mujoco")


def empty_bins(number: int, **changes: Any) -> PackingEnv:
    size = {"bin_size": (0.3, 0.3, 0.3), "resolution": 6, "items": RandomBoxes(3, 3), "orientations": "fixed"}
    return PackingEnv(number, **size | changes, device="cpu", seed=0)


def bins(second: list[int]) -> PackingEnv:
    env = empty_bins(len(second))
    current = env.reset()
    for gx in ([0] * len(second), second):
        step = env.step(current.set("action", torch.tensor(gx) * env.grid[1]))
        current = step["next"].exclude("reward")
    return env


def test_the_last_item_of_each_bin_is_judged() -> None:
    env = bins([0, 1, 2, 3])  # on top; a third over the edge; two thirds over it; beside, on the floor
    assert env.num_packed.tolist() == [2, 2, 2, 2]
    assert stands_in_physics(env, [0, 1, 2, 3]).tolist() == [True, True, False, True]
    assert stands_in_physics(env, [2, 0], workers=1).tolist() == [False, True]


def test_an_empty_bin_stands() -> None:
    env = bins([0])
    env.reset()
    assert stands_in_physics(env, [0]).tolist() == [True]


def test_a_pallet_has_no_walls() -> None:
    assert [plan_of(empty_bins(1, walls=walls), 0).walls for walls in (True, False)] == [True, False]


# -- in the environment ------------------------------------------------------------------------------------------------


def test_a_tower_that_falls_is_worth_no_stability_by_hand() -> None:
    # The second cube stands on the first, or hangs over its edge by two thirds and falls; 27 of 216 cells each.
    #   J = 0.75 · 1/4 + 0.25 · 1 + 0.25 S                      after the first: C = 27 / (36·3), P = 1
    #   J = 0.75 · 1/4 + 0.25 · 1 + 0.25                        on top of it: C = 54 / (36·6), P = 54 / (9·6)
    #   J = 0.75 · 1/4 + 0.25 · 54 / (6·3 + 9·6) + 0.25 S       over the edge, where 6 cells are 3 high and 9 are 6
    env = empty_bins(2, reward="objective", stability_judge="physics")
    first = env.step(env.reset().set("action", torch.tensor([0, 0])))["next"]
    assert first["reward"].flatten().tolist() == pytest.approx([0.1875 + 0.5] * 2)
    second = env.step(first.exclude("reward").set("action", torch.tensor([0, 2 * 6])))["next"]
    assert env.state.stable.tolist() == [True, False]
    assert second["reward"].flatten().tolist() == pytest.approx([0, 0.25 * (54 / 72 - 1) - 0.25], abs=1e-6)


def test_the_environment_says_what_the_judge_says() -> None:
    env = packing("irregular, judged", num_envs=3, stability_judge="physics")
    plain = env.like(3, stability_judge="rule")
    generator, current, other, verdicts = torch.Generator().manual_seed(0), env.reset(), plain.reset(), []
    stands = torch.zeros(3, dtype=torch.bool)
    for turn in range(8):
        action = legal_action(current["action_mask"], generator)
        if turn == 5:
            action[1] = -1
        legal = current["action_mask"].gather(1, action.clamp_min(0)[:, None])[:, 0] & (action >= 0)
        seen, mine = (e.step(c.set("action", action))["next"] for e, c in ((env, current), (plain, other)))
        judged = torch.from_numpy(stands_in_physics(plain, range(3)))
        stands = torch.where(legal, judged, stands)
        assert torch.equal(env.state.stable, stands)
        assert_same(seen.exclude("reward"), mine.exclude("reward"))
        current, other = env.maybe_reset(seen.exclude("reward")), plain.maybe_reset(mine.exclude("reward"))
        verdicts += stands[legal].tolist()
        stands = stands & ~seen["done"][:, 0]
    assert True in verdicts
    assert False in verdicts


def test_a_saved_environment_goes_on_bit_by_bit() -> None:
    env, other = (packing("irregular, judged", num_envs=2, stability_judge="physics", seed=seed) for seed in (0, 9))
    _, current = play(env, 3)
    saved, start = env.state_dict(), current.clone()
    expected, _ = play(env, 5, seed=1, start=current)
    play(other, 2)
    other.load_state_dict(saved)
    came, _ = play(other, 5, seed=1, start=start)
    for first, second in zip(expected, came, strict=True):
        assert_same(first, second)


def test_without_mujoco_it_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ModuleNotFoundError, match=r"\[physics\]"):
        empty_bins(1, stability_judge="physics")


def test_only_this_judge_says_that_it_reads_the_host() -> None:
    assert "stability_judge='physics'" in empty_bins(1, stability_judge="physics").reads_host
    assert [empty_bins(1, stability_judge=judge).reads_host for judge in ("rule", "com")] == ["", ""]
