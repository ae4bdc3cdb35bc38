"""Values of training steps, for the loggers and the progress bar."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, cast

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from torchrl_gpu.system.sections import section
from torchrl_gpu.training.trainer_fields import is_trial


class LoggedValue(NamedTuple):
    """A value of a training step.

    Attributes:
        name: Without the "train/" before it.
        value: On the host, so that Lightning copies nothing to the device.
        on_bar: Whether the progress bar shows it.
    """

    name: str
    value: Tensor
    on_bar: bool


def on_host(value: float) -> Tensor:
    """A number to log, as a tensor on the host.

    Lightning would copy a float to the device, and the host would wait for it.
    """
    return torch.tensor(float(value), dtype=torch.float32, device="cpu")


class StepLog:
    """Which training steps are logged, and their values on the host."""

    def __init__(self) -> None:
        self._has_logged = False

    def begin(self) -> None:
        """Log the next step in any case, as the first one of a run."""
        self._has_logged = False

    def is_due(self, trainer: Trainer) -> bool:
        """Whether values of this training step are wanted.

        They are where the loggers are given it (`trainer.log_every_n_steps`), in the first and the last step of a run,
        and in the last one of an epoch; never where the Trainer is `barebones`.
        """
        if trainer.barebones:
            return False
        to_loggers = trainer._logger_connector.should_update_logs or is_trial(trainer)
        ends = trainer.is_last_batch or 0 < trainer.max_steps <= trainer.global_step
        return bool(to_loggers or ends or not self._has_logged)

    def read(
        self, trainer: Trainer, values: Mapping[str, Tensor | float], outcomes: Collection[str]
    ) -> Iterator[LoggedValue]:
        """Values of this training step, without outcomes that no process has yet.

        Tensors are means over all processes, outcomes over those in which an episode has ended. The device is waited
        for once, and not for each value, as Lightning would wait.
        """
        self._has_logged = True
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        together = torch.stack([value.detach() for value in tensors.values()])
        if trainer.world_size > 1:
            is_outcome = [name in outcomes for name in tensors]
            together = _mean_over_processes(trainer, together, is_outcome)
        # All values at once: the device is waited for at each copy.
        with section("transfer"):
            on_cpu = together.cpu()
        read = dict(zip(tensors, on_cpu, strict=True))
        for name, value in values.items():
            logged = read[name] if name in read else on_host(float(value))
            if name in read and name in outcomes and math.isnan(logged):
                continue
            yield LoggedValue(name, logged, on_bar=name == "loss" or name in outcomes)


def _mean_over_processes(trainer: Trainer, values: Tensor, is_outcome: list[bool]) -> Tensor:
    """Mean of each value (V,) over all processes.

    An outcome is NaN in a process without an episode, which does not count.
    """
    may_be_absent = torch.tensor(is_outcome, dtype=torch.bool, device=values.device)
    absent = values.isnan() & may_be_absent
    present = (~absent).to(values.dtype)
    # Sums and counts in one message. A mean of means would count the processes that have no episode yet.
    both = torch.stack([torch.where(absent, 0.0, values), present])
    total, number = cast("Tensor", trainer.strategy.reduce(both, reduce_op="sum"))
    return total / number
