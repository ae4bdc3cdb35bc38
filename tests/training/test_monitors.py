"""Names that a `monitor` may have, and that those are what runs log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from tests.training.forked_runs import NAMES, arguments, write_inputs
from tests.training.rank_cases import Lines
from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.cli.lightning_cli import build
from torchrl_gpu.cli.parser import resolve_configs

# One of each kind of run; the others are tried in `make soak`.
FEW = ("packing.yaml", "packing_pallets.yaml", "packing_dqn.yaml", "ppo_packing.yaml")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.soak) for name in NAMES]
)
def test_every_metric_of_a_shipped_run_may_be_monitored(
    name: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(inputs)
    command, *words = arguments(name, tmp_path, updates=16 if name == "packing_refined.yaml" else 4)
    cli = build(command, [*resolve_configs(words), "--trainer.logger=false", "--trainer.enable_progress_bar=false"])
    cli.trainer.fit(cli.model, cli.datamodule)
    model: Any = cli.model
    logged = [each for each in cli.trainer.callback_metrics if each.startswith(("train/", "val/"))]
    assert [each for each in logged if each.startswith("val/")]
    assert [each for each in logged if not model.may_log(each)] == []


@pytest.mark.parametrize("callback", [EarlyStopping, ModelCheckpoint, EpisodeCheckpoint])
@pytest.mark.parametrize(
    ("monitor", "nearest"),
    [
        ("utilization", "val/utilization, train/utilization"),
        ("val/utilisation", "val/utilization"),
        ("loss", "train/loss"),
        ("train/los", "train/loss"),
        ("val_utilization", "val/utilization"),
        ("nothing", "val/"),
    ],
)
def test_a_monitor_that_cannot_exist_is_refused_at_the_start(
    callback: Any, monitor: str, nearest: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"^{callback.__name__}: monitor .*{nearest}.*; got {monitor}$"):
        fit(module(warmup_frames=10**9), tmp_path, 2, callback(monitor=monitor))


class Logs(Callback):
    """A callback of the user's own, which logs what it likes."""

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.log("mine", 1.0)


def test_monitor_takes_metrics_of_a_users_callback(tmp_path: Path) -> None:
    fit(module(), tmp_path, 6, Logs(), EpisodeCheckpoint(monitor="mine"))
    assert (tmp_path / "checkpoints" / "best.ckpt").exists()


def test_a_value_that_is_not_there_yet_is_told_and_ends_nothing(tmp_path: Path) -> None:
    run = module()
    with pytest.warns(UserWarning, match="no value of val/utilization"):
        fit(without_utilization(run), tmp_path, 6, EpisodeCheckpoint(monitor="val/utilization"))
    assert not (tmp_path / "checkpoints" / "best.ckpt").exists()


def without_utilization(run: Any) -> Any:
    """A module whose validation logs no `val/utilization`.

    As where there is nothing to take a mean of.
    """
    log = run.log
    run.log = lambda name, *args, **kwargs: None if name == "val/utilization" else log(name, *args, **kwargs)
    return run


# -- validations that never come


@pytest.mark.parametrize("monitor", ["val/utilization", "train/utilization"])
def test_a_best_checkpoint_that_never_comes_is_told_at_the_start(monitor: str, tmp_path: Path) -> None:
    saver, stopping = EpisodeCheckpoint(monitor=monitor), EarlyStopping(monitor, check_on_train_epoch_end=False)
    with Lines() as lines:
        fit(module(), tmp_path, 2, saver, stopping, limit_val_batches=0)
    said = [line for line in lines if "limit_val_batches" in line and monitor in line]
    assert len(said) == (2 if monitor.startswith("val/") else 0)


@pytest.mark.parametrize(("every", "told"), [(1, False), (9, True)])
def test_a_run_that_ends_before_its_first_validation_says_so(every: int, told: bool, tmp_path: Path) -> None:
    with Lines() as lines:
        fit(module(), tmp_path, 6, EpisodeCheckpoint(monitor="val/utilization"), check_val_every_n_epoch=every)
    assert any("no best.ckpt was saved" in line and "val/utilization" in line for line in lines) is told
    assert (tmp_path / "checkpoints" / "best.ckpt").exists() is not told


def test_a_resumed_run_stops_by_the_patience_that_it_is_given(tmp_path: Path) -> None:
    """Lightning would go on with that of the checkpoint, without a word."""
    kept = {"monitor": "val/utilization", "mode": "max"}
    fit(module(), tmp_path, 6, EarlyStopping(**kept, patience=7), EpisodeCheckpoint())
    stopping = EarlyStopping(**kept, patience=2)
    fit(module(), tmp_path, 12, stopping, EpisodeCheckpoint(), ckpt_path=tmp_path / "checkpoints" / "last.ckpt")
    assert stopping.patience == 2
