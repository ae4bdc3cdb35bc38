"""Floating-point operations of networks in a training step, counted on a CPU."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks.result_types import JsonObject
from torchrl_gpu import configs
from torchrl_gpu.cli.lightning_cli import build

# The last is counted.
_STEPS = 2
# Little of what only fills a replay; batches and environments stay those of the config.
_REPLAY = {"model.replay.capacity": 2000, "model.warmup_frames": 256}


class _Operations(TorchDispatchMode):
    """Counts those of products of matrices and of convolutions.

    As torch's `FlopCounterMode`, which fails where a TensorDict is a module.
    """

    total = 0

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> Any:
        options = kwargs or {}
        made = func(*args, **options)
        if func._overloadpacket in flop_registry:
            self.total += flop_registry[func._overloadpacket](*args, **options, out_val=made)
        return made


class _Count(Callback):
    """Counts operations of each training step, and ends the run behind the last."""

    operations = 0

    def on_train_batch_start(self, *arguments: object) -> None:
        self._mode = _Operations()
        self._mode.__enter__()

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        self._mode.__exit__(None, None, None)
        self.operations = self._mode.total
        trainer.should_stop = batch_idx + 1 >= _STEPS


def operations(config: str) -> int:
    """Additions and multiplications of a training step, forwards and backwards."""
    path = Path(configs.find(f"{config}.yaml"))
    told = yaml.safe_load(path.read_text(encoding="utf-8"))["model"]
    given: JsonObject = {"trainer.accelerator": "cpu", "trainer.limit_val_batches": 0}
    given |= {"trainer.enable_progress_bar": "false", "trainer.precision": "32-true"}
    # Operators of compiled functions are not seen.
    given["model.torch_compile"] = "false"
    if "replay" in told["init_args"]:
        given |= _REPLAY
    count, here = _Count(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        built = build("fit", ["--config", str(path), *(f"--{name}={value}" for name, value in given.items())])
        trainer: Any = built.trainer
        trainer.callbacks.append(count)
        trainer.fit(built.model, built.datamodule)
        os.chdir(here)
    return count.operations
