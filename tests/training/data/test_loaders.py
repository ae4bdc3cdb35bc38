"""Training steps by their number, and suites as batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from torchrl_gpu.training.data.episodes import StepLoader, single_batch


def test_an_epoch_of_steps() -> None:
    steps = StepLoader(3)
    assert len(steps) == 3
    assert [list(steps) for _ in range(2)] == [[1, 2, 3], [1, 2, 3]]


class Counted(LightningModule):
    """Notes the steps of each epoch, and validations."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.automatic_optimization = torch.nn.Linear(1, 1), False
        self.seen: list[tuple[int, int | str]] = []

    def training_step(self, batch: int, batch_idx: int) -> None:
        self.seen.append((self.current_epoch, batch))
        self.optimizers().step()  # type: ignore[union-attr]

    def validation_step(self, batch: str, batch_idx: int) -> None:
        self.seen.append((self.current_epoch, batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("stop", [None, 2, 4])  # a run that ends in the middle of an epoch has ended that epoch
def test_every_epoch_has_all_of_its_steps(stop: int | None, tmp_path: Path) -> None:
    quiet: dict[str, Any] = {"accelerator": "cpu", "logger": False, "num_sanity_val_steps": 0}
    quiet |= {"enable_progress_bar": False, "enable_model_summary": False}
    seen = []
    if stop is not None:
        first = Counted()
        trainer = Trainer(max_steps=stop, enable_checkpointing=False, **quiet)
        trainer.fit(first, StepLoader(2), single_batch("suite"))
        trainer.save_checkpoint(tmp_path / "stopped.ckpt")
        seen = first.seen
    module, path = Counted(), None if stop is None else tmp_path / "stopped.ckpt"
    trainer = Trainer(max_epochs=3, enable_checkpointing=False, **quiet)
    trainer.fit(module, StepLoader(2), single_batch("suite"), ckpt_path=path)
    steps = [(epoch, batch) for epoch, batch in seen + module.seen if batch != "suite"]
    assert steps == [(epoch, batch) for epoch in range(3) for batch in (1, 2)]
    if stop is None:
        assert [epoch for epoch, batch in module.seen if batch == "suite"] == [0, 1, 2]


@pytest.mark.parametrize("stop", [1, 2])
def test_steps_go_on_in_the_middle_of_an_epoch(stop: int) -> None:
    steps, fresh = iter(started := StepLoader(3)), StepLoader(3)
    for _ in range(stop):
        next(steps)
    fresh.load_state_dict(started.state_dict())
    assert list(fresh) == [1, 2, 3][stop:]
    assert list(fresh) == [1, 2, 3]


def test_a_suite_is_one_batch_as_it_is() -> None:
    suite = object()
    assert [list(loader) for loader in [single_batch(suite)] * 2] == [[suite], [suite]]
    assert len(single_batch(suite)) == 1


def test_to_evaluate_draws_nothing_from_the_generator_of_training() -> None:
    before = torch.get_rng_state()
    assert list(single_batch(1, 2)) == [1, 2]
    assert torch.equal(torch.get_rng_state(), before)
