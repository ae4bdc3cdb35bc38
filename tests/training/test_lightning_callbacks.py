"""Averaged weights: by hand, validated, saved and resumed.

Also what a step logs.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging, WeightAveraging
from torch import Tensor, nn

from tests.training.resuming import differences, everything, last
from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.training.lightning_callbacks import RunAveraging, WeightCopy
from torchrl_gpu.training.step_log import StepLog

WEIGHT = "agent.policy.module.0.module.layer.weight"


class Notes(Callback):
    def __init__(self) -> None:
        self.trained: list[torch.Tensor] = []
        self.validated: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.trained.append(pl_module.state_dict()[WEIGHT].clone())

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.validated.append(pl_module.state_dict()[WEIGHT].clone())


def test_the_average_by_hand(tmp_path: Path) -> None:
    notes = Notes()
    run = fit(module(), tmp_path, 6, notes, EMAWeightAveraging(decay=0.5), EpisodeCheckpoint())
    # Each has two updates.
    first, second, third = notes.trained
    expected = 0.5 * (0.5 * first + 0.5 * second) + 0.5 * third
    (validated,) = notes.validated
    torch.testing.assert_close(validated, expected)
    # The average is what is left of the run.
    assert torch.equal(run.state_dict()[WEIGHT], validated)
    saved = torch.load(last(tmp_path), weights_only=True)
    assert torch.equal(saved["state_dict"][WEIGHT], validated)
    assert torch.equal(saved["current_model_state"][WEIGHT], third)
    assert not torch.equal(third, validated)


def test_plain_means_too(tmp_path: Path) -> None:
    notes = Notes()
    run = fit(module(), tmp_path, 6, notes, WeightAveraging())
    torch.testing.assert_close(run.state_dict()[WEIGHT], torch.stack(notes.trained).mean(0))


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    def run(folder: Path, steps: int, ckpt_path: Path | None = None) -> dict[str, Any]:
        averaging = EMAWeightAveraging(decay=0.7, update_every_n_steps=3)
        fit(module(), folder, steps, averaging, EpisodeCheckpoint(), ckpt_path=ckpt_path)
        return everything(last(folder))

    whole = run(tmp_path / "whole", 12)
    run(tmp_path / "parts", 6)
    parts = run(tmp_path / "parts", 12, last(tmp_path / "parts"))
    assert differences(whole, parts) == []
    assert {"current_model_state", "averaging_state"} <= set(whole)
    assert differences(whole["state_dict"], whole["current_model_state"]) != []


def test_a_period_that_no_training_step_ends_with_is_kept(tmp_path: Path) -> None:
    averaging = EMAWeightAveraging(update_every_n_steps=3)
    run = fit(module(), tmp_path, 12, averaging)
    matching = [each for each in run.trainer.callbacks if isinstance(each, RunAveraging)]
    (adopted,) = matching
    # updates 0, 3, 6 and 9 of twelve, in training steps of two: each in another one
    assert adopted.asked is averaging
    assert int(adopted._average_model.n_averaged) == 4


def test_a_finished_run_that_is_resumed_has_the_average(tmp_path: Path) -> None:
    def run(ckpt_path: Path | None = None) -> torch.Tensor:
        callbacks = EMAWeightAveraging(decay=0.5), EpisodeCheckpoint()
        return fit(module(), tmp_path, 6, *callbacks, ckpt_path=ckpt_path).state_dict()[WEIGHT]

    assert torch.equal(run(), run(last(tmp_path)))


def test_a_checkpoint_without_an_average_begins_one(tmp_path: Path) -> None:
    fit(module(), tmp_path, 6, EpisodeCheckpoint())
    with pytest.warns(UserWarning, match="not created with WeightAveraging"):
        fit(module(), tmp_path, 12, EMAWeightAveraging(), EpisodeCheckpoint(), ckpt_path=last(tmp_path))
    assert "averaging_state" in torch.load(last(tmp_path), weights_only=True)


def test_a_copy_is_saved_under_the_names_of_what_is_copied() -> None:
    shared = nn.Linear(2, 1)
    whole = nn.ModuleDict({"one": shared, "other": shared, "norm": nn.BatchNorm1d(3)})
    copied = WeightCopy(whole)
    assert copied.state_dict().keys() == whole.state_dict().keys()
    assert sum(1 for _ in copied.parameters()) == sum(1 for _ in whole.parameters()) == 4
    with torch.no_grad():
        shared.weight.fill_(7.0)
    assert not torch.equal(copied.state_dict()["one.weight"], shared.weight)
    copied.load_state_dict(whole.state_dict())
    assert torch.equal(copied.state_dict()["other.weight"], shared.weight)


def logged(values: dict[str, Tensor | float], outcomes: dict[str, Tensor], *others: list[float]) -> dict[str, float]:
    """Return the logged values of a process.

    `others` are what further processes have in place of the tensors, in their order.
    """

    def reduce(both: Tensor, reduce_op: str) -> Tensor:
        assert reduce_op == "sum"
        there = torch.tensor(others, dtype=torch.float32)
        return both + torch.stack([there.nan_to_num(0.0).sum(0), (~there.isnan()).float().sum(0)])

    trainer = SimpleNamespace(world_size=1 + len(others), strategy=SimpleNamespace(reduce=reduce))
    read = StepLog().read(cast("Any", trainer), values, outcomes)
    return {f"train/{name}": float(value) for name, value, _ in read}


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
