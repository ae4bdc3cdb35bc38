"""The mirror of checkpoints: in the background, through outages, and back.

It also fills an empty machine.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from tests.callbacks.test_checkpoint import Luck, best_step
from tests.test_end_to_end import small
from tests.training.resuming import differences, everything, last
from tests.training.tiny import fit, module
from torchrl_gpu import cli
from torchrl_gpu.callbacks import CheckpointMirror, EpisodeCheckpoint, checkpoint_mirror
from torchrl_gpu.callbacks.checkpoint_mirror import fetch
from torchrl_gpu.checkpoints.storage import CheckpointStorage

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory")


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def saver(**changes: Any) -> EpisodeCheckpoint:
    return EpisodeCheckpoint(every_n_updates=4, **changes)


def test_a_run_goes_on_elsewhere_bit_for_bit(url: str, tmp_path: Path) -> None:
    fit(module(), tmp_path / "whole", 16, saver())
    fit(module(), tmp_path / "first", 8, saver(), CheckpointMirror(url))
    elsewhere = CheckpointMirror(url)
    elsewhere.fetch(tmp_path / "second" / "checkpoints")
    assert last(tmp_path / "second").read_bytes() == last(tmp_path / "first").read_bytes()
    fit(module(), tmp_path / "second", 16, saver(), elsewhere, ckpt_path=str(last(tmp_path / "second")))
    assert differences(everything(last(tmp_path / "whole")), everything(last(tmp_path / "second"))) == []
    assert CheckpointStorage(url).list_remotes()[0].stem == "last"
    assert len(CheckpointStorage(url).list_remotes()) == 2
    assert len({remote.run for remote in CheckpointStorage(url).list_remotes()}) == 1


def test_files_that_are_here_are_never_replaced(url: str, tmp_path: Path) -> None:
    fit(module(), tmp_path, 4, saver(), CheckpointMirror(url))
    before = last(tmp_path).read_bytes()
    fit(module(), tmp_path / "other", 8, saver(), CheckpointMirror(url))
    CheckpointMirror(url).fetch(tmp_path / "checkpoints")
    assert last(tmp_path).read_bytes() == before
    assert not (tmp_path / "checkpoints" / ".mirror").exists()


def test_processes_of_a_machine_fetch_once(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(module(), tmp_path / "first", 4, saver(), CheckpointMirror(url))
    calls = []

    def fetch_slowly(storage: CheckpointStorage, folder: Path) -> list[Path]:
        calls.append(folder)
        # The others come while this one fetches.
        time.sleep(0.2)
        return fetch(storage, folder)

    monkeypatch.setattr(checkpoint_mirror, "fetch", fetch_slowly)
    places = [threading.Thread(target=CheckpointMirror(url).fetch, args=(tmp_path / "second",)) for _ in range(3)]
    for each in places:
        each.start()
    for each in places:
        each.join()
    assert len(calls) == 1
    assert [path.name for path in sorted((tmp_path / "second").glob("last*"))] == sorted(
        path.name for path in (tmp_path / "first" / "checkpoints").iterdir() if path.stem.startswith("last")
    )


class Slow(CheckpointStorage):
    def __init__(self) -> None:
        super().__init__("memory://slow")
        self.leave, self.begun = threading.Event(), threading.Event()
        self.puts: list[tuple[str, int]] = []

    def put(self, entry: Any, checkpoint: Path, parts: Any) -> str:
        self.begun.set()
        assert self.leave.wait(60)
        self.puts.append((checkpoint.stem, torch.load(checkpoint, weights_only=True)["global_step"]))
        assert all(part.exists() for part in parts)
        return ""


def test_training_never_waits_and_what_is_late_is_left_out(tmp_path: Path) -> None:
    mirror = CheckpointMirror("memory://slow")
    mirror.storage = slow = Slow()

    class Leave(Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            # Training came to its end while nothing was uploaded.
            assert slow.begun.wait(60)

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            slow.leave.set()

    fit(module(), tmp_path, 24, Leave(), saver(keep=1), mirror)
    # It is kept, although the run has removed its own updates-4.
    assert slow.puts == [("updates-4", 4), ("last", 24)]


@pytest.mark.parametrize("first", ["saver", "mirror"])
def test_the_best_one_is_uploaded_where_a_run_fails(url: str, tmp_path: Path, first: str) -> None:
    """Whatever the order of the two: the saver flushes the mirror."""

    class Fails(Callback):
        def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
            if trainer.global_step == 14:
                raise RuntimeError("failed")

    callbacks = [saver(monitor="val/luck"), CheckpointMirror(url)]
    with pytest.raises(RuntimeError, match="failed"):
        fit(module(), tmp_path, 24, Luck(), Fails(), *(callbacks if first == "saver" else callbacks[::-1]))
    folder = tmp_path / "checkpoints"
    assert best_step(tmp_path) == 12
    fetch(CheckpointStorage(url), tmp_path / "there")
    assert (tmp_path / "there" / "best.ckpt").read_bytes() == (folder / "best.ckpt").read_bytes()
    assert not (folder / ".mirror").exists()


class Dead(CheckpointStorage):
    def put(self, entry: Any, checkpoint: Path, parts: Any) -> str:
        raise ConnectionError("nobody\nanswers")

    def fetch_newest(self, folder: Path) -> Any:
        raise ConnectionError("nobody\nanswers")


def test_dead_storage_costs_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mirror = CheckpointMirror("memory://dead")
    mirror.storage = Dead("memory://dead")
    with caplog.at_level(logging.WARNING, "torchrl_gpu.callbacks.checkpoint_mirror"):
        fit(module(), tmp_path, 12, saver(), mirror)
    matching = [record.getMessage() for record in caplog.records if "CheckpointMirror" in record.getMessage()]
    (said,) = matching
    assert said.endswith("memory://dead takes no checkpoint: nobody answers; training goes on")
    assert torch.load(last(tmp_path), weights_only=True)["global_step"] == 12
    with pytest.raises(ValueError, match=r"memory://dead .*: nobody answers"):
        mirror.fetch(tmp_path / "empty")


def test_the_end_waits_no_longer_than_it_may(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mirror = CheckpointMirror("memory://slow", wait_s=0.0)
    mirror.storage = slow = Slow()
    fit(module(), tmp_path, 4, saver(), mirror)
    slow.leave.set()
    assert any("nothing within 0 s" in record.getMessage() for record in caplog.records)


def test_without_anything_to_listen_to(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"EpisodeCheckpoint.*trainer\.callbacks"):
        fit(module(), tmp_path, 2, CheckpointMirror("memory://x"))


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path / 'bucket'}"
    mirrored = ["--trainer.callbacks+=torchrl_gpu.callbacks.CheckpointMirror", f"--trainer.callbacks.url={url}"]
    words = ["--trainer.logger=false", *mirrored]
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    assert cli.main(["fetch", url, "runs/packing/checkpoints"], "torchrl-gpu") == 3
    assert cli.main(["fit", *small("packing.yaml", 4), *words]) is None
    monkeypatch.chdir(tmp_path / "second")
    assert cli.main(["fetch", url, "runs/packing/checkpoints"], "torchrl-gpu") == 0
    assert cli.main(["fetch", url, "runs/packing/checkpoints"], "torchrl-gpu") == 0
    assert "is there already" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "third")
    assert cli.main(["fit", *small("packing.yaml", 8), *words, "--ckpt_path=last"]) is None
    assert torch.load("runs/packing/checkpoints/last.ckpt", weights_only=True)["global_step"] == 8
    assert cli.main(["fetch", "nothing://x", "empty"], "torchrl-gpu") == 2
