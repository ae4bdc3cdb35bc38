"""Demonstrations on disk: what was saved is read, by tensordict too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from tests.demonstrations import row_files
from torchrl_gpu.demonstrations import read_demonstrations
from torchrl_gpu.demonstrations.memmap import save
from torchrl_gpu.envs import memory


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    folder = row_files.write_rows(tmp_path / "rows")
    shown = read_demonstrations(folder)
    assert shown.lengths.tolist() == list(row_files.LENGTHS)
    assert (shown.about["policy"], shown.about["seed"], shown.about["num_rows"]) == ("nobody", 7, 15)
    theirs = TensorDict.load_memmap(folder / "rows")
    assert set(theirs.keys()) == set(shown.rows.keys()) == {"heights", "state", "action"}
    assert all(torch.equal(theirs[name], shown.rows[name]) for name in theirs.keys())  # noqa: SIM118
    batch = shown.batch(torch.arange(15))
    assert (batch["heights"].dtype, batch["action"].dtype) == (torch.float32, torch.int64)
    assert torch.equal(batch["heights"], theirs["heights"].float())


def test_a_file_that_is_longer_than_said_is_refused(tmp_path: Path) -> None:
    folder = row_files.write_rows(tmp_path / "rows")
    with (folder / "rows" / "state.memmap").open("ab") as file:
        file.write(bytes(4))
    with pytest.raises(ValueError, match=r"state\.memmap: .*want .* bytes, \(15, .*\) of float32; got .* bytes"):
        read_demonstrations(folder)


def test_what_is_read_is_saved_again(tmp_path: Path) -> None:
    first = row_files.write_rows(tmp_path / "a")
    second = save(read_demonstrations(first), tmp_path / "b")
    assert json.loads((first / "demonstrations.json").read_text()) == json.loads(
        (second / "demonstrations.json").read_text()
    )


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="want a folder that is not there yet"):
        save(read_demonstrations(row_files.write_rows(tmp_path / "a")), tmp_path)


def test_a_file_that_shrinks_after_it_was_read_is_no_matter(tmp_path: Path) -> None:
    shown = read_demonstrations(row_files.write_rows(tmp_path / "a"))
    before = shown.rows["state"].clone()
    (tmp_path / "a" / "rows" / "state.memmap").write_bytes(b"")
    assert torch.equal(shown.rows["state"], before)


def test_what_does_not_fit_into_memory_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = row_files.write_rows(tmp_path / "a")
    monkeypatch.setattr(memory, "free_bytes", lambda device: 100)
    with pytest.raises(ValueError, match=r"demonstrations.json: want at most 80 bytes of rows, 80% of the free memory"):
        read_demonstrations(folder)


def test_an_index_is_small(tmp_path: Path) -> None:
    """Of 60 MB of empty lists, JSON makes 2.7 GiB."""
    folder = row_files.write_rows(tmp_path / "a")
    index = folder / "rows" / "meta.json"
    index.write_text(index.read_text() + " " * 2**18)
    with pytest.raises(ValueError, match=r"meta.json: want JSON of at most 262,144 bytes; got"):
        read_demonstrations(folder)
