"""Runs whose environments are stepped by workers.

They have the same weights whoever is killed, and no process is left behind.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from tests import forks
from tests.callbacks.test_checkpoint import default_interrupts
from tests.training import rank_cases as cases
from tests.training.resuming import differences, everything, last
from tests.training.tiny import fit, module, packing_env, trainer
from torchrl_gpu.callbacks import EnvWorkers, EpisodeCheckpoint
from torchrl_gpu.envs.workers.pool import WorkerPool
from torchrl_gpu.system.sections import start_clock, stop_clock
from torchrl_gpu.training import Rollout

assert default_interrupts


class Kills(Callback):
    """Kill a worker in the middle of a run.

    Or interrupt every process of the run, as a terminal does.
    """

    def __init__(self, workers: EnvWorkers, who: str) -> None:
        self.workers = workers
        self.who = who
        self.pids = list[int]()

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step != 4:
            return
        assert self.workers.pool is not None
        self.pids = [int(pid) for pid in re.findall(r"process (\d+)", " ".join(self.workers.pool.names))]
        if self.who == "worker":
            os.kill(self.pids[1], signal.SIGKILL)
        else:
            for pid in self.pids:
                os.kill(pid, signal.SIGINT)
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forks of a process that has imported what takes seconds."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forks.CONTEXT)


def run(folder: Path, who: str) -> None:
    workers = EnvWorkers(num_workers=2)
    kills = Kills(workers, who)
    try:
        fit(module(), folder, 8, EpisodeCheckpoint(), workers, kills)
    finally:
        assert len(kills.pids) == 2
        # No process is left behind.
        assert [pid for pid in kills.pids if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
@pytest.mark.usefixtures("quick_start")
def test_a_killed_worker_changes_nothing_and_the_run_resumes_without_workers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path / "killed", "worker")
    assert caplog.text.count("was killed by SIGKILL; another one continues") == 1
    fit(module(), tmp_path / "whole", 12, EpisodeCheckpoint())
    fit(module(), tmp_path / "killed", 12, EpisodeCheckpoint(), ckpt_path=last(tmp_path / "killed"), seed=5)
    assert differences(everything(last(tmp_path / "whole")), everything(last(tmp_path / "killed"))) == []


@pytest.mark.usefixtures("quick_start", "default_interrupts")
def test_ctrl_c_leaves_no_worker_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path, "all")
    # Workers leave Ctrl-C to the run.
    assert "another one continues" not in caplog.text


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
@pytest.mark.usefixtures("quick_start")
def test_a_run_from_clips_has_the_same_replay(tmp_path: Path) -> None:
    for name, callbacks in (("alone", []), ("workers", [EnvWorkers()])):
        cases.fit("video", cases.make("video", tmp_path), tmp_path / name, *callbacks)
    assert differences(*(everything(last(tmp_path / name)) for name in ("alone", "workers"))) == []


def test_starts_and_ends_of_workers_are_not_booked_as_lightnings(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool:
        def __init__(self, *arguments: object) -> None: ...
        def close(self) -> None: ...

    monkeypatch.setattr("torchrl_gpu.callbacks.env_workers.WorkerPool", Pool)
    monkeypatch.setattr(EnvWorkers, "_rollout", lambda self, each: each.rollout)
    playing: Any = SimpleNamespace(rollout=SimpleNamespace(env=packing_env(), workers=None))
    entered = []
    clock = start_clock()
    monkeypatch.setattr(clock, "enter", entered.append)
    monkeypatch.setattr(clock, "leave", lambda: None)
    workers = EnvWorkers()
    workers.on_train_start(None, playing)  # type: ignore[arg-type]
    workers.on_train_end(None, playing)  # type: ignore[arg-type]
    stop_clock()
    assert entered == ["workers", "workers"]


def test_workers_that_cannot_work_are_refused_before_they_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"EnvWorkers: num_workers .*\b8 environments; got 9"):
        fit(module(), tmp_path, 6, EnvWorkers(num_workers=9))
    with pytest.raises(ValueError, match=r"cuda_graphs true .*EnvWorkers"):
        fit(module(cuda_graphs=True), tmp_path, 6, EnvWorkers())
    with pytest.raises(ValueError, match=r"EnvWorkers: LightningModule .*no environment"):
        EnvWorkers().on_train_start(trainer(tmp_path), LightningModule())


def test_on_a_gpu_a_warning_names_the_single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module()
    made.rollout = Rollout(made.env, list(made.env.stored_keys), 1, 1.0)
    pools: list[tuple[int, str]] = []

    class Pool:
        def __init__(self, env: object, num_workers: int, transport: str, threads: int) -> None:
            pools.append((num_workers, transport))

    monkeypatch.setattr("torchrl_gpu.callbacks.env_workers.WorkerPool", Pool)
    EnvWorkers(transport="ray").on_train_start(partial, made)  # type: ignore[arg-type]  # of whom nothing is asked
    monkeypatch.setattr(type(made.env), "device", torch.device("cuda:0"))
    with pytest.warns(UserWarning, match=r"environment is on cuda:0, where one process steps .* the single process"):
        EnvWorkers().on_train_start(partial, made)  # type: ignore[arg-type]
    assert pools == [(2, "ray"), (2, "processes")]
    assert WorkerPool is not Pool
