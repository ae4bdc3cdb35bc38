"""A program of two processes whose second one is killed once.

torchrun starts both again. test_ranks.py runs it.

python -m torch.distributed.run --nproc-per-node 2 --max-restarts 1 tests/training/killed_rank.py FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer, seed_everything

from tests.training.tiny import data, module, trainer
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.callbacks.end_signals import is_restart

warnings.filterwarnings("ignore")
FOLDER = Path(sys.argv[1])


class Killed(Callback):
    """SIGKILL to the second process, before the third of four training steps."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        if trainer.global_rank == 1 and trainer.global_step == 4 and not is_restart():
            (FOLDER / "was_killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def run(name: str, *more: Callback) -> None:
    saver = EpisodeCheckpoint(every_n_updates=2, keep=100)
    seed_everything(1, verbose=False)
    runner = trainer(FOLDER / name, 8, saver, *more, accelerator="cpu", devices=2, strategy="ddp")
    runner.fit(module(), datamodule=data(), ckpt_path=saver.find_restart(runner), weights_only=True)


if not is_restart():
    run("whole")
run("killed", Killed())
