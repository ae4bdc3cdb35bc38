"""Every agent that learns from replay.

It trains, is evaluated, waits for no device, resumes, and chooses what is legal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from tensordict import TensorDictBase
from torch import Tensor

from tests.no_host_reads import NoHostReads
from tests.training import tiny, tiny_navigation
from tests.training.resuming import differences, everything, last
from tests.training.tiny import dqn, fit
from tests.training.tiny_navigation import AGENTS, marine_env, navigation, worlds
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.policies import (
    IQN,
    AgentSpace,
    EpsilonGreedy,
    PeriodicTargets,
    PlacementAtoms,
    PlacementQuantiles,
    Rainbow,
    SoftTargets,
)
from torchrl_gpu.training import OffPolicy
from torchrl_gpu.training.collect.meter import EpisodeMeter

TARGETS = {"targets": SoftTargets(0.1)}


def rainbow(space: AgentSpace, **changes: Any) -> Rainbow:
    network, exploration = partial(PlacementAtoms, num_atoms=7, channels=4, blocks=1), EpsilonGreedy(0.5, 0.0, 400)
    arguments = {"v_min": 0.0, "v_max": 1.0, "exploration": exploration}
    return Rainbow(space, network=network, **{**arguments, **TARGETS, **changes})


def iqn(space: AgentSpace, **changes: Any) -> IQN:
    network = partial(PlacementQuantiles, channels=4, blocks=1)
    arguments = {"num_taus": 4, "acting_taus": 4, "exploration": EpsilonGreedy(frames=400)}
    return IQN(space, network=network, **{**arguments, **TARGETS, **changes})


PACKERS = {"DQN": dqn, "Rainbow": rainbow, "IQN": iqn}
each_packer = pytest.mark.parametrize("name", PACKERS)


def packer(name: str, **changes: Any) -> OffPolicy:
    return tiny.module(make=PACKERS[name], **changes)


def test_its_policy_chooses_what_is_legal(tmp_path: Path) -> None:
    made = fit(packer("Rainbow"), tmp_path, 2)
    env = made.env.like(6, seed=8)
    steps = env.rollout(12, made.policy_for(env), break_when_any_done=False)
    assert steps["action_mask"].flatten(2).gather(2, steps["action"].unsqueeze(-1)).all()


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
    made = packer("DQN", prioritized=True, beta=0.4, beta_updates=beta_updates)
    seen = spied(made)
    fit(made, tmp_path, 6)
    assert [beta for beta, _ in seen] == pytest.approx(exponents)


@each_packer
def test_weights_and_priorities_are_those_of_the_definition(tmp_path: Path, name: str) -> None:
    made = packer(name, prioritized=True, alpha=0.5, beta_updates=4, updates_per_step=4)
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
    # Nothing was written after the last update.
    _, batch = seen[-1]
    wanted = (batch["td_error"].flatten().double() + 1e-3) ** 0.5
    # A transition that is drawn twice with other τ has two errors, and either will do.
    for place in set(batch["index"].tolist()):
        own = wanted[batch["index"] == place]
        assert (own - made.replay.sampler.priority[place]).abs().min() < 1e-6


def test_weights_of_priorities_count_in_the_loss(tmp_path: Path) -> None:
    def weights_after(exponent: float) -> dict[str, Tensor]:
        return fit(packer("DQN", prioritized=True, beta=exponent), tmp_path, 4).agent.state_dict()

    assert differences(weights_after(0.0), weights_after(1.0)) != []


def navigated(module: OffPolicy, folder: Path, max_steps: int = 6, *callbacks: Callback, **changes: Any) -> OffPolicy:
    return tiny.fit(module, folder, max_steps, *callbacks, data_module=worlds(), **changes)  # type: ignore[arg-type]


def test_the_curriculum_follows_the_frames(tmp_path: Path) -> None:
    module, seen = navigation(), []
    # 8 frames are played at a time.
    play = module.rollout_steps * module.env.num_envs
    rows: list[tuple[int, int]] = []

    class Look(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            rows.append((pl_module.frames, int(pl_module.env.state.next_level[0])))
            seen.append(int(pl_module.env.state.level.max()))

    navigated(module, tmp_path, 40, Look())
    assert rows[0] == (48 + play, 0)
    for frames, row in rows:
        # The row is set before the frames are played.
        assert row == (frames - play >= 120)
    assert seen[0] == 0
    # Worlds of the new row have begun, too.
    assert seen[-1] == 1


@pytest.mark.parametrize("prioritized", [False, True])
def test_only_robots_that_take_part_are_learnt_from(tmp_path: Path, prioritized: bool) -> None:
    module, batches = navigation(prioritized=prioritized), []
    losses = module.agent.losses

    def spied(batch: Any) -> Any:
        batches.append(batch.clone())
        return losses(batch)

    module.agent.losses = spied  # type: ignore[method-assign, assignment]
    navigated(module, tmp_path, 20)
    stored = module.replay.storage[: len(module.replay)]
    # Some robots take no part: one of two in the first row.
    assert 0 < stored["active"].sum() < len(stored)
    assert len(batches) == 20
    for batch in batches:
        assert batch["active"].all()
        assert batch["action_mask"].all()


def test_frames_count_worlds_not_robots(tmp_path: Path) -> None:
    module = navigated(navigation(agent={"n_steps": 1}), tmp_path, 4)
    assert module.frames == 48 + 2 * 8
    # There are two robots in each frame.
    assert len(module.replay) == 2 * module.frames
    assert module.num_trajectories == 8


def test_a_flat_world_of_one_robot(tmp_path: Path) -> None:
    single = {"curriculum": None, "robots": 1, "cores": 1, "obstacles": 1, "min_distance": 5.0, "flat": True}
    module = navigated(navigation(env=single), tmp_path)
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


@pytest.mark.parametrize("name", ["DQN", "IQN"])
def test_test_prints_the_table(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = navigation(name)
    runner = tiny.trainer(tmp_path)
    runner.test(module, datamodule=worlds(), verbose=False)
    printed = capsys.readouterr().out
    assert f"{name} (untrained)" in printed
    assert ("adaptive IQN" in printed) is (name == "IQN")
    assert (tmp_path / "evaluation.json").exists()


def test_learning_rates_by_loss(tmp_path: Path) -> None:
    module = navigated(navigation("ACIQN", learning_rates={"actor": 0.25}), tmp_path, 1)
    optimizer: Any = module.optimizers()
    rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
    assert rates == {"critic": pytest.approx(1e-3), "actor": pytest.approx(2.5e-4)}


@pytest.mark.parametrize("wrong", [{"actors": 0.5}, {"actor": 0.0}])
def test_learning_rates_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"OffPolicy: learning_rates .*critic, actor"):
        navigation("DDPG", learning_rates=wrong)


def test_an_agent_for_other_actions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"action .*discrete.*MarineNavEnv"):
        OffPolicy(marine_env("v3"), AGENTS["IQN"])


CASES: dict[str, Callable[..., OffPolicy]] = {f"{name} packs": partial(packer, name) for name in PACKERS}
CASES |= {name: partial(tiny_navigation.navigation, name) for name in tiny_navigation.AGENTS}
every = pytest.mark.parametrize("case", CASES)


def trained(
    case: str, module: OffPolicy, folder: Path, max_steps: int = 6, *more: Callback, **changes: Any
) -> OffPolicy:
    data: Any = tiny.data() if case.endswith("packs") else tiny_navigation.worlds()
    return tiny.fit(module, folder, max_steps, *more, data_module=data, **changes)


def weights(module: OffPolicy) -> list[Tensor]:
    return [weight.detach().clone() for weight in module.agent.parameters_to_train]


@every
def test_agent_trains_is_evaluated_and_reads_nothing_back(tmp_path: Path, case: str) -> None:
    module = CASES[case](prioritized="Rainbow" in case or case == "SAC")
    before = weights(module)
    runner = trained(case, module, tmp_path).trainer
    metrics, groups = runner.callback_metrics, module.agent.parameter_groups
    moved = [not torch.equal(a, b) for a, b in zip(before, weights(module), strict=True)]
    assert sum(moved) > len(moved) / 2
    assert runner.global_step == 6
    assert "train/loss" in runner.progress_bar_metrics
    score = "utilization" if case.endswith("packs") else "success"
    assert [name for name in runner.progress_bar_metrics if name.startswith("val/")] == [f"val/{score}"]
    wanted = {"train/loss", "train/frames", f"train/{score}", f"val/{score}"}
    wanted |= {f"val/{name}" for name in ("num_packed", "compactness", "pyramidality")} if score != "success" else set()
    wanted |= set() if case.endswith("packs") else {"train/collided", "val/arrived", "val/collision_rate", "val/return"}
    wanted |= {"train/epsilon"} if module.agent.exploration is not None else set()
    wanted |= {f"train/{group}_loss" for group in groups} if len(groups) > 1 else set()
    assert wanted <= set(metrics)
    assert all(value.isfinite() for value in metrics.values())
    assert module.policy_name == module.learner_name == module.agent.name
    with NoHostReads():
        module.extend_replay()
        batch = module.replay.sample()
        for part in (batch, batch["next"]):
            module.env.restore(part)
        torch.stack(list(module.agent.losses(batch).values())).sum().backward()
        module.agent.update_targets(7)
        module.replay.update_priority(batch["index"], batch["td_error"])
    optimizer: Any = module.optimizers()
    # There is no GPU here.
    assert all(group["capturable"] is False for group in optimizer.param_groups)


# In the middle of an epoch of 3 training steps, and at its end.
RESUMED: list[tuple[str, dict[str, Any], int]] = [
    ("DQN packs", {"prioritized": True}, 4),
    ("Rainbow", {"prioritized": True, "beta_updates": 20, "agent": {"targets": PeriodicTargets(4)}}, 6),
    ("SAC", {}, 4),
]


@pytest.mark.parametrize(("case", "changes", "stop"), RESUMED)
def test_a_run_that_is_stopped_and_resumed(tmp_path: Path, case: str, changes: dict[str, Any], stop: int) -> None:
    schedule = partial(torch.optim.lr_scheduler.LinearLR, start_factor=1.0, end_factor=0.1, total_iters=10)
    make = partial(CASES[case], lr_scheduler=schedule, **changes)
    trained(case, make(), tmp_path / "whole", 12, EpisodeCheckpoint())
    whole = everything(last(tmp_path / "whole"))
    trained(case, make(), tmp_path / "half", stop, EpisodeCheckpoint())
    # A new process, too, has another generator and another first episode.
    other = make(env={"seed": 11})
    trained(case, other, tmp_path / "rest", 12, EpisodeCheckpoint(), ckpt_path=last(tmp_path / "half"), seed=5)
    assert {"state_dict", "optimizer_states", "lr_schedulers", "rollout", "meter", "random", "replay"} <= set(whole)
    assert differences(whole, everything(last(tmp_path / "rest"))) == []
    assert differences(whole, everything(last(tmp_path / "half"))) != []
