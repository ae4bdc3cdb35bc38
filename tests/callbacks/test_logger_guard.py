"""Loggers that fail, which a run outlives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from tests.training.resuming import differences
from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import LoggerGuard, TrainingFilm
from torchrl_gpu.callbacks.logger_guard import outlives
from torchrl_gpu.callbacks.pictures import add_film

FULL = OSError(28, "No space left on device")


class Failing(CSVLogger):
    def __init__(self, folder: Path, fails: range) -> None:
        super().__init__(folder)
        self.calls, self.fails = 0, fails

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.calls += 1
        if self.calls in self.fails:
            raise FULL
        super().log_metrics(metrics, step)

    def finalize(self, status: str) -> None:
        if self.fails.stop > 1000:
            raise FULL


def weights(folder: Path, *callbacks: Any, logger: Any, steps: int = 24) -> dict[str, torch.Tensor]:
    return fit(module(updates_per_step=1), folder, steps, *callbacks, logger=logger).state_dict()


def test_a_run_outlives_a_logger(tmp_path: Path) -> None:
    whole = weights(tmp_path / "whole", logger=CSVLogger(tmp_path / "csv"))
    dead, alive = Failing(tmp_path / "dead", range(3, 10_000)), CSVLogger(tmp_path / "alive")
    with pytest.warns(UserWarning, match="LoggerGuard: ") as told:
        found = weights(tmp_path / "guarded", LoggerGuard(), logger=[dead, alive])
    assert differences(found, whole) == []
    said = [str(each.message) for each in told if "LoggerGuard" in str(each.message)]
    assert said[0] == ("LoggerGuard: Failing failed ([Errno 28] No space left on device): the run goes on without it")
    assert [line.endswith("calls of Failing failed in all") for line in said] == [False, True]
    assert dead.calls == 12  # two that went well, and ten in a row that did not
    assert (Path(alive.log_dir) / "metrics.csv").read_text() == (
        Path(CSVLogger(tmp_path / "csv", version=0).log_dir) / "metrics.csv"
    ).read_text()


@pytest.mark.filterwarnings("ignore:LoggerGuard")
def test_a_logger_that_recovers_is_asked_again(tmp_path: Path) -> None:
    logger = Failing(tmp_path, range(3, 9))
    weights(tmp_path / "run", LoggerGuard(), logger=logger)
    assert logger.calls > 20


@pytest.mark.filterwarnings("ignore:LoggerGuard")
def test_what_went_well_begins_the_count_of_failures_anew(tmp_path: Path) -> None:
    asked: list[bool] = []

    def log_metrics(fails: bool) -> None:
        asked.append(fails)
        if fails:
            raise FULL

    call = LoggerGuard().guarded(CSVLogger(tmp_path), log_metrics)
    plan = [*[True] * 9, False, *[True] * 9, False, *[True] * 10]
    for fails in [*plan, False]:
        call(fails)
    assert asked == plan  # ten in a row are enough: it was not asked again


def test_without_it_a_logger_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        weights(tmp_path / "run", logger=Failing(tmp_path, range(3, 10_000)), steps=6)


def test_what_is_only_looked_at_costs_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*args: Any) -> None:
        raise FULL

    monkeypatch.setattr(f"{add_film.__module__}.add_film", full)
    film, logger = TrainingFilm(first_after_s=0.0, width=16, height=16), TensorBoardLogger(tmp_path)
    with pytest.warns(UserWarning, match=r"TrainingFilm: could not be written \(.*No space left on device\)"):
        weights(tmp_path, film, logger=logger, steps=6)


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(ValueError, match="a bug"), outlives("a test"):
        raise ValueError("a bug")
