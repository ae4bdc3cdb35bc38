"""Runs whose weights stop being numbers.

They end, skip or go back, and lose no checkpoint.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from tensordict import TensorDict

from tests.callbacks.test_checkpoint import Luck
from tests.test_end_to_end import small
from tests.training.resuming import differences, everything, last
from tests.training.tiny import fit, module
from torchrl_gpu import cli
from torchrl_gpu.callbacks import Divergence, EpisodeCheckpoint
from torchrl_gpu.callbacks.divergence import RecentBatches
from torchrl_gpu.training.divergence import Diverged, drop_broken, not_finite

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory")
NAN = float("nan")


class Poison(Callback):
    """Make a number NaN before an update.

    It is one of the gradients, or of the weights where these are broken anyway.
    """

    def __init__(self, update: int, what: str = "gradients", until: int | None = None, rate_above: float = 0.0) -> None:
        self.updates = range(update, (update if until is None else until) + 1)
        self.what, self.rate_above = what, rate_above

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        group = optimizer.param_groups[0]
        if trainer.global_step + 1 in self.updates and group["lr"] > self.rate_above:
            weight = group["params"][0]
            (weight.grad if self.what == "gradients" else weight.data)[(0,) * weight.ndim] = NAN


def saver(**changes: Any) -> EpisodeCheckpoint:
    return EpisodeCheckpoint(**{"every_n_updates": 4, **changes})


@pytest.mark.parametrize("what", ["gradients", "weights"])
def test_a_run_ends_where_its_weights_are_no_numbers(tmp_path: Path, what: str) -> None:
    with pytest.raises(Diverged, match=r"update 10: NaN or") as raised:
        fit(module(), tmp_path, 20, Poison(9, what), Divergence(), saver())
    assert "updates-8.ckpt is finite" in str(raised.value)
    assert raised.value.checkpoint is None
    saved = {path.stem for path in (tmp_path / "checkpoints").glob("*.ckpt")}
    assert saved == {"updates-4", "updates-8"}
    for stem in saved:
        weights = torch.load(tmp_path / "checkpoints" / f"{stem}.ckpt", weights_only=True)["state_dict"]
        assert all(value.isfinite().all() for value in weights.values() if value.is_floating_point())


def test_the_batches_that_it_came_from_are_written(tmp_path: Path) -> None:
    seen: list[Any] = []
    run = module()
    note = run.note_batch
    run.note_batch = lambda batch: (seen.append(batch), note(batch))[1]  # type: ignore[method-assign]
    with pytest.raises(Diverged, match=r"last 10 batches"):
        fit(run, tmp_path, 20, Poison(9), Divergence())
    content = torch.load(tmp_path / "diverged" / "update-10.pt", weights_only=True)
    assert content["update"] == 10
    errors = [batch.pop("td_error") for batch in content["batches"]]
    # Update 9 breaks the weights.
    assert [bool(each.isnan().any()) for each in errors] == [False] * 9 + [True]
    assert differences(content["batches"], [batch.exclude("td_error").to_dict() for batch in seen]) == []
    assert content["batches"][0]["next"]["reward"].shape == (16, 1)


def test_a_full_disk_does_not_hide_what_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("torchrl_gpu.callbacks.divergence.write_whole", full)
    with pytest.raises(Diverged, match=r"update 10: NaN or .*not be written.*No space"):
        fit(module(), tmp_path, 20, Poison(9), Divergence())


def test_divergence_found_by_a_checkpoint_is_described_in_full(tmp_path: Path) -> None:
    """The last update of a training step breaks the weights.

    Its loss was finite, so the checkpoint notices it first.
    """
    wanted = r"by update 12: NaN .* does not save .*batches are in .*updates-8"
    with pytest.raises(Diverged, match=wanted) as raised:
        fit(module(), tmp_path, 20, Poison(12), Divergence("back"), saver())
    assert raised.value.checkpoint == tmp_path / "checkpoints" / "updates-8.ckpt"


def test_a_loss_that_is_no_number_ends_nothing_by_itself(tmp_path: Path) -> None:
    run = module()
    step = run.training_step
    run.training_step = lambda *given: step(*given) | {"loss": torch.tensor(NAN)}  # type: ignore[method-assign]
    fit(run, tmp_path, 8, Divergence())


def test_a_checkpoint_is_never_overwritten_by_a_broken_one(tmp_path: Path) -> None:
    """Also where nobody watches the run but what saves it."""
    fit(module(), tmp_path, 6, saver())
    whole = everything(last(tmp_path))
    with pytest.raises(Diverged, match=r"NaN or .* save .*last\.ckpt"):
        fit(module(), tmp_path, 10, Poison(9), saver(every_n_updates=None), ckpt_path=last(tmp_path))
    assert differences(everything(last(tmp_path)), whole) == []


def test_the_best_one_is_never_a_broken_one(tmp_path: Path) -> None:
    best = tmp_path / "checkpoints" / "best.ckpt"
    with pytest.raises(Diverged, match=r"NaN or .* save .*best\.ckpt"):
        fit(module(), tmp_path, 18, Luck(), Poison(9), saver(every_n_updates=None, monitor="val/luck"))
    assert torch.load(best, weights_only=True)["global_step"] == 6


def test_gradients_that_are_whole_are_left_alone(tmp_path: Path) -> None:
    one = fit(module(), tmp_path / "stop", 12, Divergence("stop")).state_dict()
    other = fit(module(), tmp_path / "skip", 12, Divergence("skip")).state_dict()
    assert differences(one, other) == []


def test_updates_that_are_skipped_now_and_then_end_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrl_gpu.callbacks.divergence._IN_A_ROW", 3)
    # Four of them are broken, two in a row.
    now_and_then = [Poison(3, until=4), Poison(6, until=7)]
    with pytest.warns(UserWarning, match="Divergence: ") as told:
        run = fit(module(), tmp_path, 10, *now_and_then, Divergence("skip"), saver())
    assert run.trainer.global_step == 10
    assert [str(each.message) for each in told if "updates skipped" in str(each.message)] == [
        "Divergence: 4 of 10 updates skipped"
    ]
    assert not_finite(run) is None


def test_a_resumed_run_that_goes_back_again_lowers_rates_again() -> None:
    """The rates of a resumed run are lowered from where they were.

    It went back once, was stopped, and diverges for the first time in another process.
    """
    resumed: Any = Divergence("back")
    resumed.load_state_dict({"rates_taken": 1})
    saver: Any = SimpleNamespace(newest=lambda trainer: Path("last.ckpt"))
    trainer: Any = SimpleNamespace(
        lightning_module=torch.nn.Linear(1, 1),
        is_global_zero=True,
        global_step=9,
        world_size=1,
        checkpoint_callbacks=[],
    )
    # Without a checkpoint it does not go back.
    assert resumed.make_error(trainer, "NaN").times == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchrl_gpu.callbacks.divergence.EpisodeCheckpoint", SimpleNamespace)
        trainer.checkpoint_callbacks = [saver]
        found = resumed.make_error(trainer, "NaN")
    assert (found.checkpoint, found.times) == (Path("last.ckpt"), 2)
    again: Any = Divergence("back")
    again.times = found.times
    again.load_state_dict({"rates_taken": 1})
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.8)
    again.on_train_start(SimpleNamespace(optimizers=[optimizer], lr_scheduler_configs=[]), torch.nn.Linear(1, 1))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.4)


def test_batches_are_bounded_while_a_training_step_makes_many_updates() -> None:
    recent = RecentBatches()
    for number in range(116):
        recent.append(TensorDict({"x": torch.full((8,), number)}, [8]))
        assert len(recent) == min(16, number + 1)
    assert [int(each["x"][0]) for each in recent] == list(range(100, 116))
    large = TensorDict({"x": torch.zeros(1, dtype=torch.uint8).expand(100 * 2**20)}, [100 * 2**20])
    for _ in range(5):
        recent.append(large)
    # Each has 100 MiB.
    assert len(recent) == 2
    recent.append(TensorDict({"x": torch.zeros(1, dtype=torch.uint8).expand(2**30)}, [2**30]))
    assert len(recent) == 1


def test_a_schedule_follows_a_rate_that_was_lowered() -> None:
    network = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.8)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 / (1 + update))
    trainer: Any = SimpleNamespace(optimizers=[optimizer], lr_scheduler_configs=[SimpleNamespace(scheduler=schedule)])
    callback: Any = Divergence("back")
    callback.times = 2
    callback.on_train_start(trainer, network)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.8 / 4)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.8 / 4 / 2)
    # It is called again, and not because the run went back.
    callback.on_train_start(trainer, network)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.8 / 4 / 2)


def test_a_run_that_skips_everything_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrl_gpu.callbacks.divergence._IN_A_ROW", 10)
    with pytest.warns(UserWarning, match="is skipped"), pytest.raises(Diverged, match=r"10 updates in"):
        fit(module(), tmp_path, 40, Poison(3, until=40), Divergence("skip"))


@pytest.mark.parametrize("inputs", [[1.0, NAN], [1.0, float("-inf")]])
def test_only_broken_gradients_are_dropped(inputs: list[float]) -> None:
    broken = [torch.tensor([2.0, 3.0]), torch.tensor(inputs)]
    assert bool(drop_broken(broken))
    assert torch.equal(torch.cat(broken), torch.zeros(4))
    # The sum of their squares is not finite.
    large = [torch.tensor([3e38]), torch.tensor([-3e38, 1.0])]
    assert not bool(drop_broken(large))
    assert torch.equal(torch.cat(large), torch.tensor([3e38, -3e38, 1.0]))


def test_weights_of_a_checkpoint_that_are_broken_are_refused(tmp_path: Path) -> None:
    run = module()
    with torch.no_grad():
        next(run.agent.parameters())[0] = NAN
    with pytest.raises(ValueError, match=r"Divergence: .*: NaN or infinity"):
        fit(run, tmp_path, 4, Divergence())


def going_back(poison: str) -> list[str]:
    poison = f"{{class_path: tests.callbacks.test_divergence.Poison, init_args: {{update: 5{poison}}}}}"
    divergence = "{class_path: torchrl_gpu.callbacks.Divergence, init_args: {action: back}}"
    saves = "{class_path: torchrl_gpu.callbacks.EpisodeCheckpoint, init_args: {every_n_updates: 4}}"
    quickly = ["--trainer.limit_val_batches=0", "--trainer.logger=false"]
    return ["fit", *small("packing_dqn.yaml", 8), *quickly, f"--trainer.callbacks=[{poison}, {divergence}, {saves}]"]


def test_a_run_goes_back_with_a_lower_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Going back twice lowers the rate far enough.

    Update 5 breaks the weights unless the learning rate is below a third of what it was.
    """
    monkeypatch.chdir(tmp_path)
    args = [*going_back(", rate_above: 0.0035"), "--model.optimizer.lr=0.01", "--model.lr_scheduler=null"]
    with pytest.warns(UserWarning, match=r"goes back to .*updates-4\.ckpt, learning rate times 0\.5") as told:
        assert not cli.main(args, "lightning")
    assert sum("goes back to" in str(each.message) for each in told) == 2
    (path,) = tmp_path.rglob("last.ckpt")
    content = torch.load(path, weights_only=True)
    assert content["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(0.01 / 4)
    assert content["global_step"] == 8
    weights = content["state_dict"].values()
    assert all(value.isfinite().all() for value in weights if value.is_floating_point())


def test_back_so_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torchrl_gpu.callbacks.divergence._MOST", 1)
    with pytest.warns(UserWarning, match="goes back") as told:
        assert cli.main(going_back(""), "lightning") == cli.program.USER_ERROR
    assert sum("goes back" in str(each.message) for each in told) == 1
    assert capsys.readouterr().err.count("\nerror: OffPolicy: the run diverged by update 6: NaN") <= 1
