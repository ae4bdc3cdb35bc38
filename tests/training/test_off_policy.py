"""Q-learning under Lightning's Trainer: how long it runs, that it repeats itself, and that it resumes exactly."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import SerialEnv

from tests.training.resuming import as_if_saved_on_cuda, check_checkpoint, differences, everything, last
from tests.training.tiny import data, dqn, fit, module, packing_env, trainer
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.checkpoints.files import parts_of
from torchrl_gpu.policies import PlacementScores, SoftTargets
from torchrl_gpu.training import OffPolicy

# -- how long it runs --


@pytest.mark.parametrize("max_steps", [1, 5, 6])
def test_max_steps_counts_updates_and_is_met_exactly(tmp_path: Path, max_steps: int) -> None:
    made = fit(module(), tmp_path, max_steps)
    (state, *_) = made.optimizers().optimizer.state.values()  # type: ignore[union-attr]
    assert made.trainer.global_step == max_steps
    assert state["step"] == max_steps


def test_frames_by_hand(tmp_path: Path) -> None:
    # 8 environments and 2 steps at a time are 16 frames. 40 frames of warm-up take 3 times, then comes one before every
    # 2 updates: 3 times for 6 updates. The first chunk gives no 3-step return yet, every later one gives 16.
    made = fit(module(warmup_frames=40), tmp_path, 6)
    assert made.frames == (3 + 3) * 16
    assert len(made.replay) == (3 + 3 - 1) * 16


def test_training_where_nothing_is_legal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"OffPolicy: want .*; got skip_unplaceable=True, which is for evaluation"):
        fit(module(env={"skip_unplaceable": True}), tmp_path, 1)


def test_updates_wait_for_a_batch(tmp_path: Path) -> None:
    made = fit(module(warmup_frames=0, batch_size=40, agent={"n_steps": 4}, rollout_steps=1), tmp_path, 2)
    # chunks of 8 transitions, none before 4 steps: 5 chunks make a batch, and another comes before the updates
    assert made.frames == (3 + 5 + 1) * 8


def test_rewards_are_scaled_in_the_loss_and_nowhere_else(tmp_path: Path) -> None:
    made, seen = module(reward_scale=1000.0), []
    losses = made.agent.losses

    def spied(batch: TensorDictBase) -> dict[str, Tensor]:
        seen.append((batch["next", "reward"].clone(), batch["index"]))
        return losses(batch)

    made.agent.losses = spied  # type: ignore[method-assign]
    fit(made, tmp_path, 6)
    assert len(seen) == 6
    stored = made.replay.storage[:]["next", "reward"]
    assert 0 < stored.max() <= 1
    for reward, index in seen:
        assert torch.equal(reward, 1000 * stored[index])  # the ring has not come around yet


def test_what_nobody_looks_at_is_not_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[int] = []
    made, log = module(), OffPolicy.log

    def noted(self: OffPolicy, name: str, value: Tensor, **options: Any) -> None:
        if name == "train/frames":
            logged.append(self.trainer.global_step // 2)
        assert isinstance(value, Tensor)  # a number would be copied to the device, and the host wait for it
        log(self, name, value, **options)

    monkeypatch.setattr(OffPolicy, "log", noted)
    fit(made, tmp_path, 20, data_module=data(steps_per_epoch=7), log_every_n_steps=3)
    # every third training step of ten, the first and the last, and the end of the epoch
    assert [step for step in logged if step] == [1, 3, 6, 7, 9, 10]


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_without_a_data_module_it_trains_and_validates_nothing(tmp_path: Path) -> None:
    made, runner = module(), trainer(tmp_path, 6, enable_checkpointing=False)
    runner.fit(made)
    assert runner.global_step == 6
    assert made.frames == 48 + 3 * 16
    assert "val/utilization" not in runner.callback_metrics


def test_an_environment_of_another_kind_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^OffPolicy: env must be a .*BatchedEnv .*; got torchrl\..*SerialEnv$"):
        OffPolicy(SerialEnv(2, packing_env), dqn)


# -- it repeats itself --


def test_same_seed_same_run(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        fit(module(prioritized=True), tmp_path / name, 6, EpisodeCheckpoint(), seed=seed)
    first, second, other = (everything(last(tmp_path / name)) for name in "abc")
    assert differences(first, second) == []
    assert differences(first["state_dict"], other["state_dict"]) != []


# -- it resumes exactly --


def test_without_its_replay_a_resumed_run_fills_it_again(tmp_path: Path) -> None:
    fit(module(), tmp_path / "half", 6, EpisodeCheckpoint(save_replay=False))
    assert parts_of(last(tmp_path / "half")) == []
    made = module()
    frames: list[int] = []
    made.on_train_batch_start = lambda *args: frames.append(made.frames)  # type: ignore[method-assign]
    fit(made, tmp_path / "rest", 8, EpisodeCheckpoint(), ckpt_path=last(tmp_path / "half"))
    # the first half made 48 + 3 · 16 = 96 frames; another 48 of warm-up come before the next update
    assert frames == [96 + 48]
    assert made.trainer.global_step == 8
    assert len(made.replay) == 48 + 16  # the unfinished returns had been saved, so that none is lost


def test_other_numbers_of_environments_cannot_go_on(tmp_path: Path) -> None:
    fit(module(), tmp_path / "half", 2, EpisodeCheckpoint())
    made = module(env={"num_envs": 4})
    with pytest.raises(ValueError, match=r"checkpoint .*Rollout.load_state_dict: .* must have shape \(4.*\); got \(8"):
        fit(made, tmp_path / "rest", 4, EpisodeCheckpoint(), ckpt_path=last(tmp_path / "half"))


def test_a_checkpoint_holds_tensors_and_plain_values_only(tmp_path: Path) -> None:
    made = fit(module(prioritized=True), tmp_path, 2, EpisodeCheckpoint())
    torch.load(last(tmp_path), weights_only=True)
    check_checkpoint(last(tmp_path), made)
    with pytest.raises(ValueError, match=r"want agent\..* as torch.float32 \(5"):
        check_checkpoint(last(tmp_path), module(agent={"network": partial(PlacementScores, channels=5, blocks=1)}))


# -- what the configuration asks for --


def test_the_schedule_reaches_its_end(tmp_path: Path) -> None:
    scheduler = partial(torch.optim.lr_scheduler.LinearLR, start_factor=1.0, end_factor=0.25, total_iters=6)
    for steps, share in [(3, 1 - 0.75 / 2), (6, 0.25)]:
        made = fit(module(lr_scheduler=scheduler), tmp_path, steps)
        assert made.optimizers().param_groups[0]["lr"] == pytest.approx(1e-2 * share)  # type: ignore[union-attr]


def test_gradients_are_clipped(tmp_path: Path) -> None:
    def change(**changes: Any) -> float:
        made = module(reward_scale=1000.0, agent={"targets": SoftTargets(0.0001)}, **changes)
        made.make_optimizer = partial(torch.optim.SGD, lr=1.0)
        before = [weight.detach().clone() for weight in made.agent.parameters_to_train]
        fit(made, tmp_path, 1)
        after = made.agent.parameters_to_train
        return torch.cat([(a - b).flatten() for a, b in zip(after, before, strict=True)]).norm().item()

    assert change(max_grad_norm=1e-3) == pytest.approx(1e-3, rel=0.01)
    assert change(max_grad_norm=None) > 1e-2


def test_names_for_tables(tmp_path: Path) -> None:
    made = module()
    made.trainer = trainer(tmp_path)
    assert made.policy_name == "DQN (untrained)"
    assert fit(made, tmp_path, 2).policy_name == "DQN"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"capacity": 15, "batch_size": 16}, "must hold a batch and a rollout, 16 transitions; got 15"),
        ({"capacity": 30, "rollout_steps": 4}, "must hold a batch and a rollout, 32 transitions; got 30"),
    ],
)
def test_numbers_that_cannot_work(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"(OffPolicy|DeviceReplay): .*{message}"):
        module(**wrong)


@pytest.mark.parametrize("callback", [EarlyStopping, ModelCheckpoint, EpisodeCheckpoint])
def test_a_monitor_that_validation_never_logs_is_refused_before_anything_runs(tmp_path: Path, callback: Any) -> None:
    for monitor in ("val/nothing", "val/utilisation"):
        with pytest.raises(ValueError, match=f"^{callback.__name__}: monitor must be one of val/.*; got {monitor}$"):
            fit(module(warmup_frames=10**9), tmp_path, 2, callback(monitor=monitor))


def test_a_schedule_that_waits_for_a_metric_is_refused(tmp_path: Path) -> None:
    run = module()
    run.make_scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau
    with pytest.raises(ValueError, match="want an lr_scheduler that is stepped at every update; got ReduceLROn"):
        fit(run, tmp_path, 2)


@pytest.mark.parametrize(
    ("wrong", "message"), [({"last_epoch": 0}, "that begins here, last_epoch -1"), ({"total_iters": -5}, "got -5")]
)
def test_a_schedule_that_makes_no_sense(tmp_path: Path, wrong: dict[str, int], message: str) -> None:
    run = module()
    run.make_scheduler = partial(torch.optim.lr_scheduler.LinearLR, **wrong)
    with pytest.raises(ValueError, match=f"^OffPolicy: .*{message}"):
        fit(run, tmp_path, 2)


def test_nothing_of_the_environment_is_a_weight() -> None:
    assert all(name.startswith("agent.") for name in module().state_dict())


@pytest.mark.gpu
def test_on_a_gpu_and_then_on_the_cpu(tmp_path: Path) -> None:
    made: OffPolicy = fit(module(), tmp_path / "gpu", 6, EpisodeCheckpoint(), accelerator="gpu", devices=1)
    assert made.env.device.type == made.replay.storage.device.type == "cuda"
    rest = fit(module(), tmp_path / "cpu", 8, EpisodeCheckpoint(), ckpt_path=last(tmp_path / "gpu"), data_module=data())
    assert rest.trainer.global_step == 8


def test_what_was_saved_on_cuda_resumes_on_a_cpu(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit(module(), tmp_path / "half", 4, EpisodeCheckpoint())
    saved = as_if_saved_on_cuda(last(tmp_path / "half"))
    with caplog.at_level("INFO", "lightning.pytorch"):
        made = fit(module(), tmp_path / "rest", 8, EpisodeCheckpoint(), ckpt_path=saved)
    assert made.trainer.global_step == 8
    (told,) = [record.message for record in caplog.records if "saved on" in record.message]
    assert told.endswith(
        "was saved on cuda and goes on on cpu: what is drawn at random there begins anew, all else goes on"
    )


@pytest.mark.parametrize("precision", ["bf16-true", "16-true", "64-true"])
def test_weights_of_another_type_are_refused(tmp_path: Path, precision: str) -> None:
    wanted = rf"^OffPolicy: want trainer.precision 32-true, bf16-mixed, .*; got {precision}"
    with pytest.raises(ValueError, match=wanted):
        fit(module(), tmp_path, 2, precision=precision)


def test_environments_of_other_processes_follow_those_of_the_first() -> None:
    made = module(env={"first_env": 64})
    numbers = []
    for rank in (0, 1, 2, 2):  # asked for again it is the same
        made.make_env(torch.device("cpu"), rank)
        numbers.append(made.env.first_env)
    assert numbers == [64, 72, 80, 80]
