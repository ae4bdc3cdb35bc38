"""The sweep on a local cluster of two workers.

One of them is killed in the middle, and its trial loses nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer

pytest.importorskip("ray", reason="needs the extra ray")

from tests.conftest import ROOT
from tests.test_end_to_end import small
from tests.training.resuming import differences, last, without_replay
from torchrl_gpu import cli

SAVER = "{class_path: torchrl_gpu.callbacks.EpisodeCheckpoint, init_args: {every_n_updates: 5}}"


class KilledOnce(Callback):
    """Kill the worker that trains with seed 1 after its second checkpoint.

    A file remembers that this was done.
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        once = Path(trainer.default_root_dir) / "killed"
        if trainer.global_step == 13 and once.parent.name.endswith("seed-1") and not once.exists():
            once.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)


OPTIONS = [*small("packing.yaml", 20)[2:], f"--trainer.callbacks=[{SAVER}, {{class_path: {__name__}.KilledOnce}}]"]
OPTIONS += ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--data.steps_per_epoch=1000"]


@pytest.mark.soak
def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "examples" / "ray_sweep.py"), "--values", "0.5", "--seeds", "0", "1"]
    program += ["--folder", str(tmp_path / "sweep"), "--", *OPTIONS]
    sweep = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)
    assert sweep.returncode == 0, sweep.stderr[-3000:]
    zero = tmp_path / "sweep" / "rate-0.5-seed-0"
    one = tmp_path / "sweep" / "rate-0.5-seed-1"
    assert (one / "killed").exists()
    assert not (zero / "killed").exists()
    for seed in (0, 1):
        assert f"model.rate 0.5, seed {seed}: val/utilization 0." in sweep.stdout
    straight = tmp_path / "straight"
    more = ["--seed_everything=1", f"--trainer.default_root_dir={straight}", "--trainer.logger=false"]
    assert cli.main(["fit", "--config", "packing.yaml", "--model.rate=0.5", *OPTIONS, *more]) is None
    assert differences(without_replay(last(straight)), without_replay(last(one))) == []
    tables = (torch.load(last(each), weights_only=True)["state_dict"] for each in (zero, straight))
    # The seeds differ.
    assert differences(*tables) != []
