"""`Divergence("back")` lowers every rate to come.

Whatever schedule of torch sets it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, lr_scheduler
from torch.optim.swa_utils import SWALR

from tests.training import test_afterstates as tables
from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import Divergence

LATER = partial(lr_scheduler.StepLR, step_size=3)
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: 0.9**step),
    "MultiplicativeLR": partial(lr_scheduler.MultiplicativeLR, lr_lambda=lambda step: 0.9),
    "StepLR": LATER,
    "MultiStepLR": partial(lr_scheduler.MultiStepLR, milestones=[2, 6, 9]),
    "ConstantLR": partial(lr_scheduler.ConstantLR, total_iters=7),
    "LinearLR": partial(lr_scheduler.LinearLR, total_iters=12),
    "ExponentialLR": partial(lr_scheduler.ExponentialLR, gamma=0.8),
    "PolynomialLR": partial(lr_scheduler.PolynomialLR, total_iters=12, power=2.0),
    "CosineAnnealingLR": partial(lr_scheduler.CosineAnnealingLR, T_max=8, eta_min=0.01),
    "CosineAnnealingWarmRestarts": partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=4, eta_min=0.01),
    "CyclicLR": partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.3, step_size_up=4),
    "OneCycleLR": partial(lr_scheduler.OneCycleLR, max_lr=0.3, total_steps=40, pct_start=0.3),
    "SequentialLR": lambda it: lr_scheduler.SequentialLR(it, [LATER(it), lr_scheduler.CosineAnnealingLR(it, 9)], [6]),
    "ChainedScheduler": lambda it: lr_scheduler.ChainedScheduler([LATER(it), lr_scheduler.ConstantLR(it)]),
}
# Every run refuses these.
REFUSED = {"ReduceLROnPlateau"}


def test_every_schedule_of_torch_is_looked_at() -> None:
    known = {
        name
        for name, each in vars(lr_scheduler).items()
        if isinstance(each, type) and issubclass(each, lr_scheduler.LRScheduler) and not name.startswith("_")
    }
    assert known - {"LRScheduler"} == set(SCHEDULES) | REFUSED


def made(name: str) -> tuple[SGD, Any]:
    optimizer = SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in (0.2, 0.1)], momentum=0.9)
    return optimizer, SCHEDULES[name](optimizer)


def rates(optimizer: SGD, schedule: Any, steps: int) -> list[list[float]]:
    found = []
    for _ in range(steps):
        optimizer.step()
        schedule.step()
        found.append([float(group["lr"]) for group in optimizer.param_groups])
    return found


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_divergence_halves_all_rates_to_come(name: str, resumed: bool) -> None:
    (optimizer, schedule), (plain, plain_schedule) = made(name), made(name)
    for each in ((optimizer, schedule), (plain, plain_schedule)):
        rates(*each, 5)
    back = Divergence("back")
    back.times = 1
    configs = [SimpleNamespace(scheduler=schedule)]
    back.on_train_start(SimpleNamespace(optimizers=[optimizer], lr_scheduler_configs=configs), nn.Linear(1, 1))  # type: ignore[arg-type]
    # What was lowered is in the checkpoint.
    if resumed:
        again, again_schedule = made(name)
        again_schedule.load_state_dict(schedule.state_dict())
        again.load_state_dict(optimizer.state_dict())
        optimizer, schedule = again, again_schedule
    halves = 0.5 * torch.tensor(rates(plain, plain_schedule, 12))
    torch.testing.assert_close(torch.tensor(rates(optimizer, schedule, 12)), halves)


def test_a_schedule_of_ones_own_is_refused(tmp_path: Path) -> None:
    class Mine(lr_scheduler.LRScheduler):
        def get_lr(self) -> list[float]:  # type: ignore[override]
            return [0.1 for _ in self.base_lrs]

    run = module()
    run.make_scheduler = Mine  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"action back .* Mine "):
        fit(run, tmp_path, 4, Divergence("back"))


@pytest.mark.filterwarnings("ignore")
def test_plain_tables_have_no_rates_to_lower(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"action back .*AfterstateLearning .*optimizer"):
        tables.fit(tables.module(), tmp_path, 2, callbacks=[Divergence("back")])


def test_swa_is_lowered_too() -> None:
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=0.2)
    schedule = SWALR(optimizer, swa_lr=0.1, anneal_epochs=3)
    back = Divergence("stop")
    back.times = 1
    configs = [SimpleNamespace(scheduler=schedule)]
    back.on_train_start(SimpleNamespace(optimizers=[optimizer], lr_scheduler_configs=configs), nn.Linear(1, 1))  # type: ignore[arg-type]
    assert rates(optimizer, schedule, 6)[-1] == [pytest.approx(0.05)]
