"""Values of training steps, for the loggers and the progress bar."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from torchrl_gpu.system.sections import LOGGING, in_section, section

if TYPE_CHECKING:
    from torchrl_gpu.training.run import EnvRun


def on_host(value: float) -> Tensor:
    """A number to log: Lightning would copy a float to the device, and the host wait for it."""
    return torch.tensor(float(value), dtype=torch.float32, device="cpu")


class StepLog:
    """Logs values of training steps as `train/…`."""

    def __init__(self, run: EnvRun) -> None:
        self._run = run
        self._has_logged = False

    def begin(self) -> None:
        """Logs the next step in any case, as the first one of a run."""
        self._has_logged = False

    @property
    def due(self) -> bool:
        """True where values of this training step are wanted.

        They are where the loggers are given it (`trainer.log_every_n_steps`), in the first and the last step of a run,
        and in the last one of an epoch; never where the Trainer is `barebones`.
        """
        trainer = self._run.trainer
        if trainer.barebones:
            return False
        to_loggers = trainer._logger_connector.should_update_logs or trainer.fast_dev_run  # type: ignore[attr-defined]
        ends = trainer.is_last_batch or 0 < trainer.max_steps <= trainer.global_step
        return bool(to_loggers or ends or not self._has_logged)

    @in_section(LOGGING)
    def write(self, values: Mapping[str, Tensor | float]) -> None:
        """Logs values of this training step; tensors are means over all processes, outcomes over those with an episode.

        The device is waited for once, and not for each value, as Lightning would: it is given what is on the host.
        """
        run = self._run
        self._has_logged = True
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        together = torch.stack([value.detach() for value in tensors.values()])
        outcomes = run.outcomes
        is_outcome = [name in outcomes for name in tensors]
        if run.trainer.world_size > 1:
            absent = together.isnan() & torch.tensor(is_outcome, dtype=torch.bool, device=together.device)
            both = torch.stack([torch.where(absent, 0.0, together), (~absent).to(together.dtype)])
            total, number = cast("Tensor", run.trainer.strategy.reduce(both, reduce_op="sum"))
            together = total / number
        with section("transfer"):
            on_cpu = together.cpu()
        read = dict(zip(tensors, on_cpu, strict=True))
        for name, value in values.items():
            if name in read and name in outcomes and math.isnan(read[name]):
                continue
            on_bar = name == "loss" or name in outcomes
            run.log(f"train/{name}", read[name] if name in read else on_host(float(value)), prog_bar=on_bar)
