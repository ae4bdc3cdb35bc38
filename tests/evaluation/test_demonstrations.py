"""A policy's episodes as rows.

They are those that it would play by itself, each in its place, in the narrowest types.
"""

from __future__ import annotations

import pytest
import torch

from tests.training import tiny
from torchrl_gpu.demonstrations import Demonstrations
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.envs.dishes.env import DishwashingEnv
from torchrl_gpu.evaluation import demonstrations as demonstrating
from torchrl_gpu.evaluation.demonstrations import play_rows
from torchrl_gpu.evaluation.episodes import suite_for
from torchrl_gpu.evaluation.random_actions import RandomActions
from torchrl_gpu.evaluation.results import evaluation
from torchrl_gpu.policies.packing.heuristics import DeepestBottomLeft


def bins(num: int) -> Demonstrations:
    env = tiny.packing_env()
    return play_rows(suite_for(env, num, seed=5), DeepestBottomLeft(env), num)


def test_rows_are_what_was_seen_and_done_episode_by_episode() -> None:
    shown = bins(6)
    suite = suite_for(tiny.packing_env(), 6, seed=5)
    policy, rows = DeepestBottomLeft(suite.env), shown.batch(torch.arange(len(shown)))
    for episode in range(6):
        env = suite.like(1)
        suite.begin(env, episode)
        row = int(shown.first[episode])
        with evaluation(env, policy) as current:
            for step in range(int(shown.lengths[episode])):
                decided = policy(current)
                for name in ("box_heightmap", "item_id", "action"):
                    assert torch.equal(rows[name][row + step], decided[name][0])
                stepped = env.step(decided)
                current = env.step_mdp(stepped)
            assert bool(stepped["next", "done"])


def test_it_is_compact_and_restored_by_the_environment() -> None:
    env, shown = tiny.packing_env(), bins(6)
    assert {name: value.dtype for name, value in shown.rows.items()} == dict.fromkeys(shown.rows.keys(), torch.uint8)
    assert set(shown.rows.keys()) == {"box_heightmap", "item_id", "action"}
    restored = env.restore(shown.batch(torch.arange(len(shown))))
    assert bool(restored["action_mask"].gather(1, restored["action"][:, None]).all())
    assert torch.equal(DeepestBottomLeft(env)(restored.exclude("action"))["action"], shown.rows["action"].long())


def test_batches_do_not_change_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bins(7)
    monkeypatch.setattr(demonstrating, "_MOST_SIDE_BY_SIDE", 3)
    parts = bins(7)
    assert parts.lengths.tolist() == whole.lengths.tolist()
    assert all(torch.equal(parts.rows[name], whole.rows[name]) for name in whole.rows.keys())  # noqa: SIM118


def test_robots_are_episodes_of_their_own() -> None:
    env = MarineNavEnv(2, robots=3, cores=0, obstacles=0, min_distance=20.0, max_steps=12, pool=4, device="cpu", seed=0)
    suite = suite_for(env, 2, seed=1)
    shown = play_rows(suite, RandomActions(suite.env), 2)
    assert shown.num_episodes % 3 == 0
    assert int(shown.lengths.max()) <= 12 * 100
    assert not set(shown.rows.keys()) & {"active"}
    assert shown.batch(torch.arange(2))["action"].dtype == env.full_action_spec[env.action_keys[0]].dtype


def test_pictures_are_for_video() -> None:
    env = DishwashingEnv(1, max_steps=4, observe_as="video", frame_size=(16, 16), device="cpu", seed=0)
    with pytest.raises(ValueError, match=r"DishwashingEnv .*--format lerobot"):
        play_rows(suite_for(env, 1), RandomActions(env), 1)
