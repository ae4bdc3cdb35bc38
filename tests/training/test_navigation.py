"""Navigation under Lightning's Trainer: the curriculum, robots that take part, tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from tests.training import tiny
from tests.training.tiny_navigation import AGENTS, DISCRETE, marine_env, navigation, worlds
from torchrl_gpu.training import OffPolicy
from torchrl_gpu.training.collect.rollout import EpisodeMeter


def trained(module: OffPolicy, folder: Path, max_steps: int = 6, *callbacks: Callback, **changes: Any) -> OffPolicy:
    return tiny.fit(module, folder, max_steps, *callbacks, data_module=worlds(), **changes)  # type: ignore[arg-type]


def test_the_curriculum_follows_the_frames(tmp_path: Path) -> None:
    module, seen = navigation(), []
    play = module.rollout_steps * module.env.num_envs  # 8 frames at a time
    rows: list[tuple[int, int]] = []

    class Look(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            rows.append((pl_module.frames, int(pl_module.env.state.next_level[0])))
            seen.append(int(pl_module.env.state.level.max()))

    trained(module, tmp_path, 40, Look())
    assert rows[0] == (48 + play, 0)
    for frames, row in rows:
        assert row == (frames - play >= 120)  # set before the frames were played
    assert seen[0] == 0
    assert seen[-1] == 1  # and worlds of the new row have begun


@pytest.mark.parametrize("prioritized", [False, True])
def test_only_robots_that_take_part_are_learnt_from(tmp_path: Path, prioritized: bool) -> None:
    module, batches = navigation(prioritized=prioritized), []
    losses = module.agent.losses

    def spied(batch: Any) -> Any:
        batches.append(batch.clone())
        return losses(batch)

    module.agent.losses = spied  # type: ignore[method-assign, assignment]
    trained(module, tmp_path, 20)
    stored = module.replay.storage[: len(module.replay)]
    assert 0 < stored["active"].sum() < len(stored)  # some take no part: one robot of two in the first row
    assert len(batches) == 20
    for batch in batches:
        assert batch["active"].all()
        assert batch["action_mask"].all()


def test_frames_count_worlds_not_robots(tmp_path: Path) -> None:
    module = trained(navigation(agent={"n_steps": 1}), tmp_path, 4)
    assert module.frames == 48 + 2 * 8
    assert len(module.replay) == 2 * module.frames  # two robots each
    assert module.num_trajectories == 8


def test_a_flat_world_of_one_robot(tmp_path: Path) -> None:
    single = {"curriculum": None, "robots": 1, "cores": 1, "obstacles": 1, "min_distance": 5.0, "flat": True}
    module = trained(navigation(env=single), tmp_path)
    assert module.group == ()
    assert module.trainer.callback_metrics["train/loss"].isfinite()


def test_success_and_collisions_are_counted_by_world() -> None:
    env = navigation().env
    steps = torch.stack([env.rand_step(env.reset()) for _ in range(1)], 1)
    after = steps["next"]
    after["done"][:, 0, 0] = torch.tensor([True, True, True, False])
    after["success"][:, 0, 0] = torch.tensor([True, False, False, True])
    after["robots", "collided"][:, 0, :, 0] = torch.tensor([[False, False], [True, False], [False, True], [True, True]])
    meter = EpisodeMeter(env.device, env.outcome_names)
    meter.count({"done": after["done"], **env.episode_outcomes(after)})
    recent = {name: value.item() for name, value in meter.recent.items()}
    assert meter.finished.item() == 3
    assert recent == {"success": pytest.approx(1 / 3), "collided": pytest.approx(2 / 3)}


@pytest.mark.parametrize("name", DISCRETE)
def test_test_prints_the_table(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = navigation(name)
    runner = tiny.trainer(tmp_path)
    runner.test(module, datamodule=worlds(), verbose=False)
    printed = capsys.readouterr().out
    assert f"{name} (untrained)" in printed
    assert ("adaptive IQN" in printed) is (name == "IQN")
    assert (tmp_path / "evaluation.json").exists()


def test_learning_rates_by_loss(tmp_path: Path) -> None:
    module = trained(navigation("ACIQN", learning_rates={"actor": 0.25}), tmp_path, 1)
    optimizer: Any = module.optimizers()
    rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
    assert rates == {"critic": pytest.approx(1e-3), "actor": pytest.approx(2.5e-4)}


@pytest.mark.parametrize("wrong", [{"actors": 0.5}, {"actor": 0.0}])
def test_learning_rates_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"OffPolicy: learning_rates wants factors above 0 for critic, actor; got"):
        navigation("DDPG", learning_rates=wrong)


def test_an_agent_for_other_actions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"want a discrete action; that of MarineNavEnv is continuous"):
        OffPolicy(marine_env("v3"), AGENTS["IQN"])
