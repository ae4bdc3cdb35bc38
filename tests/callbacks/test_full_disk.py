"""Checkpoints that cannot be written.

A limit on the size of files stands for a full disk, and fails as late.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from tests.callbacks.test_checkpoint import Luck
from tests.test_end_to_end import small
from tests.training.resuming import differences, everything, last, part_of
from tests.training.tiny import data, fit, module
from torchrl_gpu import cli
from torchrl_gpu.callbacks import EpisodeCheckpoint, LoggerGuard, TrainingFilm
from torchrl_gpu.callbacks.logger_guard import outlives
from torchrl_gpu.callbacks.pictures import add_film
from torchrl_gpu.checkpoints.files import newest_checkpoint, write_whole

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory")


@contextmanager
def files_end_at(num_bytes: int) -> Iterator[None]:
    """Let no file grow beyond a size.

    The interpreter ignores the signal, so that writing fails.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class OnAFullDisk(EpisodeCheckpoint):
    """Save after every fourth update, on a disk that is full for a while.

    From one update to another, files cannot grow beyond some bytes.
    """

    def __init__(self, first: int = 0, behind: int = 0, room: int = 4096) -> None:
        super().__init__(every_n_updates=4)
        self.updates, self.room = range(first, behind), room

    def _save(self, trainer: Any, *args: Any, **kwargs: Any) -> bool:
        with files_end_at(self.room) if trainer.global_step in self.updates else nullcontext():
            return super()._save(trainer, *args, **kwargs)


MKSTEMP = tempfile.mkstemp
# Nothing is validated within a run.
no_validation = partial(data, steps_per_epoch=100)


def test_a_full_disk_costs_a_warning_and_no_checkpoint(tmp_path: Path) -> None:
    whole = fit(module(), tmp_path / "whole", 16, OnAFullDisk(), data_module=no_validation()).state_dict()
    wanted = r"EpisodeCheckpoint: .*updates-8\.ckpt is not saved .* takes 0\.\d+ MiB, and .* MiB are free"
    for room in (0, 4096):
        folder = tmp_path / str(room)
        with pytest.warns(UserWarning, match=wanted):
            run = fit(module(), folder, 16, OnAFullDisk(6, 12, room), data_module=no_validation())
        assert differences(run.state_dict(), whole) == []
        stems = {path.stem for path in (folder / "checkpoints").glob("*.ckpt")}
        assert stems == {"updates-12", "updates-16", "last"}
        # Each has one part, and there is nothing else.
        assert len(list((folder / "checkpoints").iterdir())) == 6
        # Each is whole.
        assert newest_checkpoint(folder / "checkpoints")[1] == []


def no_temporary_files(*args: Any, **kwargs: Any) -> Any:
    """Fail as `tempfile` does where the disk of TMPDIR is full.

    Files that name their folder are on another disk.
    """
    if kwargs.get("dir") is None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/nowhere/tmp")
    return MKSTEMP(*args, **kwargs)


def test_a_full_tmpdir_costs_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "mkstemp", no_temporary_files)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    fit(module(), tmp_path, 6, EpisodeCheckpoint(every_n_updates=2, monitor="val/utilization"))
    assert {path.stem for path in (tmp_path / "checkpoints").glob("*.ckpt")} == {
        "updates-4",
        "updates-6",
        "best",
        "last",
    }
    assert newest_checkpoint(tmp_path / "checkpoints")[1] == []


class ByLightning(TorchCheckpointIO):
    """A writer of the user's own, which is asked."""


def test_the_disk_that_is_named_is_the_one_that_was_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()

    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "tmp" / "tmp1"))

    monkeypatch.setattr("fsspec.implementations.local.tempfile.mkstemp", full)
    wanted = f"MiB are free on the disk of {tmp_path / 'tmp'}, where"
    with pytest.warns(UserWarning, match=wanted), pytest.raises(OSError, match=r"last checkpoint"):
        fit(module(), tmp_path / "run", 2, EpisodeCheckpoint(), plugins=[ByLightning()])


def test_checkpoint_that_was_not_saved_replaces_no_other(tmp_path: Path) -> None:
    """Neither that of an older one that is kept, nor that of the best one."""
    # Neither update 8 nor, with the largest value, update 6 can be saved.
    saver = OnAFullDisk(5, 10)
    saver.monitor = "val/luck"
    with pytest.warns(UserWarning, match="is not saved"):
        fit(module(), tmp_path, 12, Luck({6: 2.0, 12: 1.0}), saver)
    found = {path.stem for path in (tmp_path / "checkpoints").glob("*.ckpt")}
    assert found == {"updates-4", "updates-12", "best", "last"}
    assert saver.state_dict()["best"] == 1.0


def test_where_the_checkpoint_fits_and_its_replay_does_not(tmp_path: Path) -> None:
    fit(module(), tmp_path, 6, OnAFullDisk())
    before = everything(last(tmp_path))
    sizes = last(tmp_path).stat().st_size, part_of(last(tmp_path)).stat().st_size
    with pytest.warns(UserWarning, match="is not saved"), pytest.raises(OSError, match=r"last checkpoint"):
        fit(module(), tmp_path, 8, OnAFullDisk(6, 100, min(sizes) + 1), ckpt_path=last(tmp_path))
    # Nothing is torn.
    assert newest_checkpoint(tmp_path / "checkpoints")[1] == []
    assert differences(everything(last(tmp_path)), before) == []


def test_a_run_ends_with_a_line_where_its_end_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    full = "{class_path: tests.callbacks.test_full_disk.OnAFullDisk, init_args: {first: 0, behind: 100}}"
    args = [*small("packing_dqn.yaml", 2), f"--trainer.callbacks=[{full}]", "--trainer.logger=false"]
    with pytest.warns(UserWarning, match="is not saved"):
        assert cli.main(["fit", *args], "lightning") == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("error: ")
    assert said[-1].endswith("last.ckpt: the run is over, and its last checkpoint could not be written")


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a filesystem in which nobody makes folders")
def test_a_folder_that_cannot_be_written_is_named_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    args = [*small("packing_dqn.yaml", 4), "--trainer.default_root_dir=/sys/runs"]
    assert cli.main(["fit", *args], "lightning") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"error: /sys/runs\S*: (Operation|Read|Perm).*default_root_dir", said)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with files_end_at(10_000), pytest.raises(OSError, match=r"torch could not"):
        write_whole({"id": "0", "much": torch.zeros(100_000)}, tmp_path / "part.pt")
    assert list(tmp_path.iterdir()) == []
    write_whole({"id": "0", "much": torch.zeros(100_000)}, tmp_path / "part.pt")
    with files_end_at(10_000), pytest.raises(OSError, match=r"torch could not"):
        write_whole({"id": "1", "much": torch.zeros(100_000)}, tmp_path / "part.pt")
    assert torch.load(tmp_path / "part.pt", weights_only=True)["id"] == "0"


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
    made = fit(module(updates_per_step=1), folder, steps, *callbacks, logger=logger, data_module=no_validation())
    return made.state_dict()


def test_a_run_outlives_a_logger(tmp_path: Path) -> None:
    whole = weights(tmp_path / "whole", logger=CSVLogger(tmp_path / "csv"))
    dead, alive = Failing(tmp_path / "dead", range(3, 10_000)), CSVLogger(tmp_path / "alive")
    with pytest.warns(UserWarning, match="LoggerGuard: ") as told:
        found = weights(tmp_path / "guarded", LoggerGuard(), logger=[dead, alive])
    assert differences(found, whole) == []
    said = [str(each.message) for each in told if "LoggerGuard" in str(each.message)]
    assert said[0] == ("LoggerGuard: Failing failed ([Errno 28] No space left on device): the run goes on without it")
    assert [line.endswith("calls of Failing failed in all") for line in said] == [False, True]
    # Two went well, and ten in a row did not.
    assert dead.calls == 12
    assert (Path(alive.log_dir) / "metrics.csv").read_text() == (
        Path(CSVLogger(tmp_path / "csv", version=0).log_dir) / "metrics.csv"
    ).read_text()


@pytest.mark.filterwarnings("ignore:LoggerGuard")
def test_a_logger_that_recovers_is_asked_again(tmp_path: Path) -> None:
    logger = Failing(tmp_path, range(3, 9))
    weights(tmp_path / "run", LoggerGuard(), logger=logger)
    assert logger.calls > 20


@pytest.mark.filterwarnings("ignore:LoggerGuard")
def test_saved_checkpoint_resets_the_count_of_failures(tmp_path: Path) -> None:
    asked: list[bool] = []

    def log_metrics(fails: bool) -> None:
        asked.append(fails)
        if fails:
            raise FULL

    call = LoggerGuard().guard(CSVLogger(tmp_path), log_metrics)
    plan = [*[True] * 9, False, *[True] * 9, False, *[True] * 10]
    for fails in [*plan, False]:
        call(fails)
    # Ten in a row are enough: it was not asked again.
    assert asked == plan


@pytest.mark.filterwarnings("ignore:LoggerGuard")
def test_a_run_after_one_whose_logger_failed_asks_it_again(tmp_path: Path) -> None:
    guard, logger = LoggerGuard(), Failing(tmp_path, range(1, 11))
    weights(tmp_path / "one", guard, logger=logger)
    assert logger.calls == 10
    weights(tmp_path / "two", guard, logger=logger)
    assert logger.calls > 20


def test_film_that_cannot_be_written_costs_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*args: Any) -> None:
        raise FULL

    monkeypatch.setattr(f"{add_film.__module__}.add_film", full)
    film, logger = TrainingFilm(first_after_s=0.0, width=16, height=16), TensorBoardLogger(tmp_path)
    with pytest.warns(UserWarning, match=r"TrainingFilm: could not be written \(.*No space left on device\)"):
        weights(tmp_path, film, logger=logger, steps=6)


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(ValueError, match="a bug"), outlives("a test"):
        raise ValueError("a bug")
