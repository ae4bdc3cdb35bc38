"""What a run logs is shown as curves, and logging it costs no read of the device."""

from __future__ import annotations

import csv
import json
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from tests.callbacks.fake_server import FakeServer
from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import FrameStream, frame_stream

pytest.importorskip("cv2")


MAKE_SERVER = frame_stream.make_server


@pytest.fixture(autouse=True)
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_stream, "make_server", lambda settings: FakeServer((), settings))


def curves() -> dict[str, dict[int, float]]:
    assert FakeServer.last is not None
    found: dict[str, dict[int, float]] = {}
    for step, scalars in FakeServer.last.logged:
        for name, value in scalars.items():
            found.setdefault(name, {})[step] = value
    return found


def rows_of(logger: CSVLogger, name: str) -> list[float]:
    with (Path(logger.log_dir) / "metrics.csv").open(encoding="utf-8") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


def test_curves_are_what_the_loggers_of_the_run_get(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    fit(module(), tmp_path, 12, FrameStream(), enable_checkpointing=False, logger=logger, log_every_n_steps=1)
    found = curves()
    assert list(found["train/loss"]) == [2, 4, 6, 8, 10, 12], "by updates, of which a training step makes two"
    assert list(found["train/loss"].values()) == pytest.approx(rows_of(logger, "train/loss"))
    assert "epoch" not in found


def test_a_server_has_them_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_stream, "make_server", MAKE_SERVER)
    stream, found = FrameStream(port=0), {}

    class Fetch(Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            deadline = time.monotonic() + 20
            while 8 not in found.get("train/loss", []):  # a process reads its pipe when it gets to it
                assert time.monotonic() < deadline
                with urllib.request.urlopen(f"{stream.url}curves", timeout=20) as answer:
                    found.update({each["name"]: each["steps"] for each in json.load(answer)["curves"]})

    fit(
        module(), tmp_path, 8, Fetch(), stream, enable_checkpointing=False, logger=CSVLogger(tmp_path),
        log_every_n_steps=1,
    )  # fmt: skip
    assert found["train/loss"] == [2, 4, 6, 8]


class Extra(Callback):
    def __init__(self, **scalars: float) -> None:
        self.scalars = scalars

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        pl_module.log_dict(self.scalars)


@pytest.mark.parametrize("logger", [False, True])
def test_scalars_are_read_as_often_as_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logger: bool) -> None:
    from lightning.pytorch.trainer.connectors.logger_connector import logger_connector

    reads = []
    convert = logger_connector.convert_tensors_to_scalars
    monkeypatch.setattr(
        logger_connector, "convert_tensors_to_scalars", lambda metrics: reads.append(None) or convert(metrics)
    )
    counts = []
    for callbacks in ((), (FrameStream(),)):
        loggers: Any = CSVLogger(tmp_path) if logger else False
        fit(module(), tmp_path, 12, *callbacks, enable_checkpointing=False, logger=loggers, log_every_n_steps=2)
        counts.append(len(reads))
        reads.clear()
    assert counts[0] == counts[1]
    assert bool(counts[0]) == bool(curves()) == logger


def test_the_loggers_of_the_run_stay_what_they_were(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="board")
    seen: list[Any] = []

    class Look(Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            seen.extend((trainer.logger, trainer.log_dir, len(trainer.loggers)))

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            self.left = list(trainer.loggers)

    look, checkpoint = Look(), ModelCheckpoint()
    fit(module(), tmp_path, 4, FrameStream(), look, checkpoint, logger=logger)
    assert seen == [logger, logger.log_dir, 2]
    assert look.left == [logger]
    assert Path(checkpoint.dirpath or "").parent == Path(logger.log_dir)


def test_they_stay_after_an_error(tmp_path: Path) -> None:
    class Fail(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            self.trainer = trainer
            raise ZeroDivisionError

    fail, logger = Fail(), CSVLogger(tmp_path)
    with pytest.raises(ZeroDivisionError):
        fit(module(), tmp_path, 4, FrameStream(), fail, enable_checkpointing=False, logger=logger)
    assert fail.trainer.loggers == [logger]


def test_long_names_are_cut_and_too_many_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_stream, "MOST_CURVES", 3)
    extra = Extra(**{"x" * 40 + "/" + "y" * 40: 1.0, "a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0})
    with pytest.warns(UserWarning, match="FrameStream: the page shows 3 curves; '.*' is not among them") as warned:
        fit(
            module(), tmp_path, 4, extra, FrameStream(), enable_checkpointing=False, logger=CSVLogger(tmp_path),
            log_every_n_steps=1,
        )  # fmt: skip
    assert len([each for each in warned if "is not among them" in str(each.message)]) == 1
    assert len(curves()) == 3
    assert max(map(len, curves())) <= frame_stream.LONGEST_NAME


def test_scalars_of_every_kind_are_passed_on() -> None:
    trainer: Any = SimpleNamespace(loggers=[None], global_step=3)
    logger = frame_stream.CurveLogger(trainer, server := FakeServer((), {}))
    scalars = {"true": True, "numpy": np.bool_(False), "half": np.float16(0.5), "whole": np.int64(2)}
    logger.log_metrics(scalars | {"tensor": torch.tensor(0.25), "text": "x", "two": np.zeros(2), "none": None})
    assert server.logged == [(3, {"true": 1, "numpy": 0, "half": 0.5, "whole": 2, "tensor": 0.25})]
