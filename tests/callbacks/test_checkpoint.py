"""Checkpoints by episodes: when they are due, which are kept, and that none is ever half written."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.training.replay import replay_file


class Diary(Callback):
    """Episodes finished before the first training step and after each."""

    def __init__(self) -> None:
        self.episodes: list[int] = []

    def on_train_batch_start(self, trainer, pl_module, *args) -> None:  # type: ignore[no-untyped-def]
        if not self.episodes:
            self.episodes.append(int(pl_module.meter.finished))

    def on_train_batch_end(self, trainer, pl_module, *args) -> None:  # type: ignore[no-untyped-def]
        self.episodes.append(int(pl_module.meter.finished))


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").iterdir()}


def with_replay(*stems: str) -> set[str]:
    return {f"{stem}{suffix}" for stem in stems for suffix in (".ckpt", ".replay.pt")}


def crossings(episodes: list[int], every: int) -> list[int]:
    """Counts at which another multiple has been crossed, the definition."""
    return [after for before, after in pairwise(episodes) if after // every > before // every]


@pytest.mark.parametrize("every", [1, 4, 1000])
def test_one_whenever_a_multiple_is_crossed(tmp_path: Path, every: int) -> None:
    diary = Diary()
    fit(module(), tmp_path, 16, diary, EpisodeCheckpoint(every_n_episodes=every, keep=100))
    due = crossings(diary.episodes, every)
    assert names(tmp_path) == with_replay("last", *(f"episodes-{count}" for count in due))
    if every == 4:
        assert 0 < len(due) < 8  # not at every step, and not never


def test_only_the_last_one_by_default(tmp_path: Path) -> None:
    fit(module(), tmp_path, 4, EpisodeCheckpoint())
    assert names(tmp_path) == with_replay("last")


def test_old_ones_go_with_their_replay(tmp_path: Path) -> None:
    diary = Diary()
    fit(module(), tmp_path, 16, diary, EpisodeCheckpoint(every_n_episodes=1, keep=2))
    kept = crossings(diary.episodes, 1)[-2:]
    assert names(tmp_path) == with_replay("last", *(f"episodes-{count}" for count in kept))


def test_a_folder_of_its_own_and_no_replay(tmp_path: Path) -> None:
    fit(module(), tmp_path / "run", 2, EpisodeCheckpoint(dirpath=str(tmp_path / "checkpoints"), save_replay=False))
    assert names(tmp_path) == {"last.ckpt"}
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_a_resumed_run_goes_on_counting_and_dropping(tmp_path: Path) -> None:
    fit(module(), tmp_path, 8, EpisodeCheckpoint(every_n_episodes=1, keep=1))
    (old,) = (tmp_path / "checkpoints").glob("episodes-*.ckpt")
    diary = Diary()
    fit(module(), tmp_path, 12, diary, EpisodeCheckpoint(every_n_episodes=1, keep=1), ckpt_path=old)
    newest = crossings(diary.episodes, 1)[-1]
    assert f"episodes-{newest}.ckpt" != old.name
    assert names(tmp_path) == with_replay("last", f"episodes-{newest}")


def test_a_resumed_run_saves_nothing_before_it_is_due(tmp_path: Path) -> None:
    fit(module(), tmp_path / "half", 8, EpisodeCheckpoint())
    diary = Diary()
    last = tmp_path / "half" / "checkpoints" / "last.ckpt"
    finished = int(torch.load(last, weights_only=True)["meter"]["finished"])
    fit(module(), tmp_path / "rest", 10, diary, EpisodeCheckpoint(every_n_episodes=finished), ckpt_path=last)
    assert diary.episodes[0] == finished >= 2  # a multiple that had been crossed before
    assert diary.episodes[-1] < 2 * finished
    assert names(tmp_path / "rest") == with_replay("last")


@pytest.mark.parametrize("moment", ["checkpoint", "replay"])
def test_what_is_interrupted_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    fit(module(), tmp_path, 2, EpisodeCheckpoint())
    last = tmp_path / "checkpoints" / "last.ckpt"
    before, replay_before = last.read_bytes(), replay_file(last).read_bytes()

    def interrupted(*args: object, **kwargs: object) -> None:
        raise OSError("no space left")

    writers = {
        "checkpoint": "lightning.pytorch.Trainer.save_checkpoint",
        "replay": "torchrl_gpu.training.replay_run.save_replay",
    }
    monkeypatch.setattr(writers[moment], interrupted)
    with pytest.raises(OSError, match="no space left"):
        fit(module(), tmp_path, 4, EpisodeCheckpoint())
    assert last.read_bytes() == before
    assert replay_file(last).read_bytes() == replay_before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"every_n_episodes": 0}, "every_n_episodes must be at least 1; got 0"), ({"keep": 0}, "keep must be at least 1")],
)
def test_numbers_that_cannot_work(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"EpisodeCheckpoint: {message}"):
        EpisodeCheckpoint(**wrong)  # type: ignore[arg-type]
