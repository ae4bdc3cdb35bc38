"""The folder of a run: what it finds there, what it removes, and who may save."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest
import torch
from lightning.pytorch import Trainer

from torchrl_gpu.checkpoints.files import BEST, checkpoint_entry, new_id, part_path, parts_of, write_whole
from torchrl_gpu.checkpoints.run_folder import RunFolder
from torchrl_gpu.system.archives import ENTRY

RUN = "0123456789ab"
Value = TypeVar("Value")


class OneProcess:
    def broadcast(self, value: Value) -> Value:
        return value


def one_process() -> Trainer:
    return cast("Trainer", SimpleNamespace(is_global_zero=True, strategy=OneProcess()))


def folder_of(path: Path, run: str | None = RUN, measure: str = "max val/utilization") -> RunFolder:
    return RunFolder(path, run, prefixes=("episodes-", "updates-"), measure=measure, state_key="EpisodeCheckpoint")


def save(path: Path, name: str, steps: int, *, run: str = RUN, best: float | None = None, generation: int = 0) -> Path:
    """A checkpoint with one part, as a run of one process leaves it."""
    checkpoint_id = new_id()
    checkpoint = path / name
    part = part_path(checkpoint, checkpoint_id, 0)
    write_whole({"id": checkpoint_id, "rank": 0, "replay": torch.zeros(3)}, part)
    entry = checkpoint_entry(run, checkpoint_id, [part], 1, generation)
    content = {"global_step": steps, "state_dict": {}, "callbacks": {"EpisodeCheckpoint": {"best": best}}}
    write_whole({**content, ENTRY: {**entry, "monitor": "max val/utilization"}}, checkpoint)
    return checkpoint


def names_in(path: Path) -> set[str]:
    return {each.name for each in path.glob("*.ckpt")}


def test_run_folder_touches_nothing_before_it_is_opened(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "checkpoints")
    assert folder.newest() is None
    folder.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["last", "best"])
def test_find_in_empty_folder_names_word_and_folder(word: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"ckpt_path.*{word}.*{tmp_path}"):
        folder_of(tmp_path).find(word)


def test_find_takes_furthest_and_best_by_their_words(tmp_path: Path) -> None:
    save(tmp_path, "updates-4.ckpt", 4)
    save(tmp_path, "updates-8.ckpt", 8)
    save(tmp_path, BEST, 6)
    assert folder_of(tmp_path).find("last").name == "updates-8.ckpt"
    assert folder_of(tmp_path).find("best").name == BEST


def test_newest_leaves_out_checkpoints_of_other_runs(tmp_path: Path) -> None:
    save(tmp_path, "updates-4.ckpt", 4)
    save(tmp_path, "updates-8.ckpt", 8, run=new_id())
    newest = folder_of(tmp_path).newest()
    assert newest is not None
    assert newest.name == "updates-4.ckpt"


def test_open_folder_refuses_second_run_until_it_is_closed(tmp_path: Path) -> None:
    first = folder_of(tmp_path)
    first.open(one_process(), None, (0, 0, 0))
    second = folder_of(tmp_path, new_id())
    with pytest.raises(ValueError, match=str(tmp_path)):
        second.open(one_process(), None, (0, 0, 0))
    first.close()
    second.open(one_process(), None, (0, 0, 0))
    second.close()


def test_open_makes_id_where_run_has_none(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, None)
    folder.open(one_process(), None, (0, 0, 0))
    folder.close()
    assert folder.run is not None
    assert len(folder.run) == 12


@pytest.mark.parametrize(("resumed", "generation"), [("updates-8.ckpt", 2), ("updates-4.ckpt", 3)])
def test_run_that_went_back_behind_later_checkpoints_takes_next_generation(
    resumed: str, generation: int, tmp_path: Path
) -> None:
    steps = {"updates-4.ckpt": 4, "updates-8.ckpt": 8}
    for name, number in steps.items():
        save(tmp_path, name, number, generation=2)
    folder = folder_of(tmp_path)
    folder.open(one_process(), tmp_path / resumed, (2, steps[resumed], 0))
    folder.close()
    assert folder.generation == generation


@pytest.mark.parametrize(("measure", "best"), [("max val/utilization", 0.5), ("min val/loss", None)])
def test_best_value_counts_for_its_own_measure_alone(measure: str, best: float | None, tmp_path: Path) -> None:
    save(tmp_path, BEST, 4, best=0.5)
    folder = folder_of(tmp_path, measure=measure)
    folder.open(one_process(), None, (0, 0, 0))
    folder.close()
    assert folder.best == best


def test_keep_newest_removes_older_numbered_ones_with_their_parts(tmp_path: Path) -> None:
    for number in (2, 4):
        save(tmp_path, f"updates-{number}.ckpt", number)
    copy = save(tmp_path, "a_copy.ckpt", 2)
    folder = folder_of(tmp_path)
    folder.open(one_process(), tmp_path / "updates-4.ckpt", (0, 4, 0))
    newest = save(tmp_path, "updates-6.ckpt", 6)
    folder.keep_newest(newest.name, 2)
    folder.close()
    assert names_in(tmp_path) == {"a_copy.ckpt", "updates-4.ckpt", "updates-6.ckpt"}
    assert parts_of(tmp_path / "updates-2.ckpt") == []
    assert len(parts_of(copy)) == 1


def test_checkpoints_of_another_run_are_set_aside_once(tmp_path: Path) -> None:
    save(tmp_path, "last.ckpt", 4, run=new_id())
    folder = folder_of(tmp_path)
    folder.open(one_process(), None, (0, 0, 0))
    assert names_in(tmp_path) == {"last.ckpt"}
    folder.set_others_aside()
    save(tmp_path, "last.ckpt", 2)
    folder.set_others_aside()
    folder.close()
    assert names_in(tmp_path) == {"last.ckpt"}
    assert names_in(tmp_path / "earlier-1") == {"last.ckpt"}
    assert not (tmp_path / "earlier-2").exists()
