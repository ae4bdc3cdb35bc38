"""Jobs that SLURM or torchrun end and start again, with a stand-in for `scontrol`."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, Trainer

from tests.test_end_to_end import small
from tests.training.resuming import differences, everything, last
from tests.training.tiny import fit, module
from torchrl_gpu import cli
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.callbacks.end_signals import EndSignals, is_restart

JOB = {
    "SLURM_NTASKS": "1",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_NNODES": "1",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}


class TimeLimit(Callback):
    def __init__(self, updates: int) -> None:
        self.updates = updates

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        if "SLURM_JOB_ID" in os.environ and not is_restart() and trainer.global_step == self.updates:
            signal.raise_signal(signal.SIGUSR1)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """Make this process the only task of a job.

    `scontrol` is a program of a given exit status that notes how it was called.
    """

    def begin(status: int) -> Path:
        programs, calls = tmp_path / "programs", tmp_path / "scontrol.calls"
        programs.mkdir()
        (programs / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {calls}\necho no such job >&2\nexit {status}\n')
        (programs / "scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        for name, value in JOB.items():
            monkeypatch.setenv(name, value)
        return calls

    return begin


def command(folder: Path) -> list[str]:
    more = [f"--trainer.default_root_dir={folder}", "--trainer.logger=false", "--trainer.limit_val_batches=0"]
    more += [f"--trainer.callbacks+={__name__}.TimeLimit", "--trainer.callbacks.updates=2"]
    return ["fit", *small("packing_dqn.yaml"), *more]


def test_a_requeued_job_goes_on(slurm: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(command(tmp_path / "straight")) is None
    calls = slurm(0)
    assert cli.main(command(tmp_path / "job")) == 143
    assert calls.read_text() == "requeue 4711\n"
    saved = everything(last(tmp_path / "job"))
    # Of 6 updates: the training step in which the signal came is completed.
    assert saved["global_step"] == 4
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    # This is the same command.
    assert cli.main(command(tmp_path / "job")) is None
    assert differences(everything(last(tmp_path / "job")), everything(last(tmp_path / "straight"))) == []
    assert not list((tmp_path / "job").rglob("hpc_ckpt*"))


def test_a_job_without_a_save(slurm: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm(0)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    assert cli.main(command(tmp_path)) is None
    assert everything(last(tmp_path))["global_step"] == 6


def test_where_slurm_refuses_the_run_goes_on(slurm: Callable[[int], Path], tmp_path: Path) -> None:
    calls = slurm(1)
    with pytest.warns(UserWarning, match=r"scontrol requeue 4711: status 1, no such job.*the run goes on"):
        fit(module(), tmp_path, 6, EpisodeCheckpoint(), TimeLimit(2))
    assert calls.read_text() == "requeue 4711\n"
    assert everything(last(tmp_path))["global_step"] == 6


def test_a_task_of_an_array(slurm: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = slurm(0)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "4700")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "11")
    with pytest.raises(SystemExit):
        fit(module(), tmp_path, 6, EpisodeCheckpoint(), TimeLimit(2))
    assert calls.read_text() == "requeue 4700_11\n"


def test_without_slurm_the_signal_is_left_alone(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)

    class Seen(Callback):
        handler: Any = None

        def on_train_batch_start(self, *args: Any) -> None:
            self.handler = signal.getsignal(signal.SIGUSR1)

    seen = Seen()
    fit(module(), tmp_path, 2, EpisodeCheckpoint(), seen)
    assert seen.handler is before is signal.getsignal(signal.SIGUSR1)


@pytest.mark.parametrize(
    ("name", "value", "restart"),
    [
        ("SLURM_RESTART_COUNT", "0", False),
        ("SLURM_RESTART_COUNT", "2", True),
        ("TORCHELASTIC_RESTART_COUNT", "1", True),
        ("SLURM_RESTART_COUNT", "", False),
    ],
)
def test_restarts_are_known_by_their_variables(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, restart: bool
) -> None:
    for each in ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(each, raising=False)
    assert not is_restart()
    monkeypatch.setenv(name, value)
    assert is_restart() is restart


def test_handlers_stay_behind_when_a_callback_is_copied() -> None:
    taken = EndSignals()
    taken.terminate = True
    taken._before = {signal.SIGTERM: signal.SIG_DFL}
    assert copy.copy(taken).__dict__ == EndSignals().__dict__
