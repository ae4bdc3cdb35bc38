"""Values that are logged of a training step: outcomes before an episode has ended, and processes without one."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from torchrl_gpu.training.step_log import StepLog


def logged(values: dict[str, Tensor | float], outcomes: dict[str, Tensor], *others: list[float]) -> dict[str, float]:
    """What a process logs; `others` are what further processes have in place of the tensors, in their order."""
    found: dict[str, float] = {}

    def reduce(both: Tensor, reduce_op: str) -> Tensor:
        assert reduce_op == "sum"
        there = torch.tensor(others, dtype=torch.float32)
        return both + torch.stack([there.nan_to_num(0.0).sum(0), (~there.isnan()).float().sum(0)])

    trainer = SimpleNamespace(world_size=1 + len(others), strategy=SimpleNamespace(reduce=reduce))
    run: Any = SimpleNamespace(trainer=trainer, outcomes=outcomes)
    run.log = lambda name, value, prog_bar: found.update({name: float(value)})
    StepLog(run).write(values)
    return found


NAN = torch.tensor(math.nan)


def test_an_outcome_is_left_out_until_an_episode_has_ended() -> None:
    values = {"loss": torch.tensor(2.0), "success": NAN, "frames": 7}
    assert logged(values, {"success": NAN}) == {"train/loss": 2.0, "train/frames": 7.0}
    known = {"success": torch.tensor(0.5)}
    assert logged({"loss": torch.tensor(2.0), **known}, known)["train/success"] == 0.5


def test_a_loss_that_is_no_number_is_logged() -> None:
    assert math.isnan(logged({"loss": NAN}, {})["train/loss"])


def test_processes_without_an_episode_do_not_count() -> None:
    outcomes = {"success": NAN, "arrived": NAN, "found": torch.tensor(0.5)}
    others = [[4.0, 0.25, math.nan, 0.7], [3.0, 0.75, math.nan, math.nan]]
    found = logged({"loss": torch.tensor(2.0), **outcomes}, outcomes, *others)
    assert found == {"train/loss": 3.0, "train/success": 0.5, "train/found": pytest.approx(0.6)}
