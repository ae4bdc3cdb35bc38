"""A run with two workers in which somebody is killed, or that is ended by Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from tests import forks
from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import EnvWorkers, EpisodeCheckpoint


class Kills(Callback):
    """In the middle of a run kills a worker, or interrupts every process of it as a terminal does."""

    def __init__(self, workers: EnvWorkers, who: str) -> None:
        self.workers, self.who = workers, who

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        assert self.workers.pool is not None
        pids = re.findall(r"process (\d+)", " ".join(self.workers.pool.names))
        Path(trainer.default_root_dir, "pids").write_text(" ".join(pids))
        if trainer.global_step == 4:
            if self.who == "worker":
                os.kill(int(pids[1]), signal.SIGKILL)
            else:
                for pid in map(int, pids):  # forked workers are in the process group of their server
                    os.kill(pid, signal.SIGINT)
                signal.raise_signal(signal.SIGINT)


def main(folder: Path, who: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
    multiprocessing.get_context = lambda method: forks.CONTEXT  # type: ignore[assignment,misc]
    workers = EnvWorkers(num_workers=2)
    fit(module(), folder, 8, EpisodeCheckpoint(), workers, Kills(workers, who))
