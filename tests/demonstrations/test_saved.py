"""Stores on disk: bit for bit, opened without decoding, and what is refused of strangers' ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchrl_gpu.demonstrations import ClipStore, load_demonstrations, loading, open_store, save_store


@pytest.fixture(scope="module")
def store(dataset: Path) -> ClipStore:
    return load_demonstrations(dataset, device="cpu", size=(12, 16))


@pytest.fixture
def folder(store: ClipStore, tmp_path: Path) -> Path:
    return save_store(store, tmp_path / "clips")


def test_what_is_opened_is_what_was_saved(store: ClipStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "decode", None)
    opened = load_demonstrations(folder, device="cpu")
    assert torch.equal(opened.frames, store.frames)
    assert set(opened.rows.keys(True, True)) == set(store.rows.keys(True, True))
    assert (opened.rows == store.rows).all()
    assert all(opened.rows[key].dtype == store.rows[key].dtype for key in store.rows.keys(True, True))
    for name in ("lengths", "fps", "image_key", "tasks", "videos"):
        assert getattr(opened, name) == getattr(store, name)
    assert {key: set(each) for key, each in opened.stats.items()} == {
        key: set(each) for key, each in store.stats.items()
    }
    assert torch.equal(opened.stats["action"]["mean"], store.stats["action"]["mean"])
    index = torch.tensor([0, 6, 21])
    assert torch.equal(opened.clips(index, 4), store.clips(index, 4))


def test_what_is_written_into_an_open_store_is_not_in_the_file(folder: Path) -> None:
    before = (folder / "frames.npy").read_bytes()
    open_store(folder).frames.zero_()
    assert (folder / "frames.npy").read_bytes() == before


def test_a_folder_is_not_written_over(store: ClipStore, folder: Path) -> None:
    with pytest.raises(FileExistsError, match="want a folder that is not there yet"):
        save_store(store, folder)


def test_a_store_that_breaks_off_has_no_name(store: ClipStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        save_store(store, tmp_path / "clips")
    assert not (tmp_path / "clips").exists()
    monkeypatch.undo()
    assert len(open_store(save_store(store, tmp_path / "clips"))) == len(store), "what was left is written over"


def about(**changes: Any) -> Callable[[Path], Any]:
    def spoil(folder: Path) -> None:
        path = folder / "clips.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def frames(array: np.ndarray, cut: int = 0) -> Callable[[Path], Any]:
    def spoil(folder: Path) -> None:
        np.save(folder / "frames.npy", array)
        data = (folder / "frames.npy").read_bytes()
        (folder / "frames.npy").write_bytes(data[: len(data) - cut])

    return spoil


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another format": (about(format="x"), "want format 'torchrl_gpu clips 1'; got 'x'"),
    "lengths that do not add up": (about(lengths=[5]), "want lengths that add up to 22 frames; got 5"),
    "lengths below 1": (
        about(lengths=[22, 0]),
        "lengths must be a whole number, at least 1|lengths must be at least 1",
    ),
    "no lengths": (about(lengths=7), "want lengths of episodes"),
    "no rate": (about(fps=None), "fps must be a finite number"),
    "no key": (about(image_key=["a"]), "want an image_key"),
    "an empty key": (about(image_key="a//b"), "want names of entries"),
    "no tasks": (about(tasks=[1]), "want tasks by their numbers"),
    "no stats": (about(stats=[1]), "stats: want an object"),
    "no videos": (about(videos=[{"name": 1}]), "want videos of name, frames"),
    "no JSON": (lambda folder: (folder / "clips.json").write_text("{"), "want JSON"),
    "frames of floats": (frames(np.zeros((22, 3, 4, 4), np.float32)), r"want frames \(F, 3, H, W\) uint8, all of them"),
    "frames of one channel": (frames(np.zeros((22, 1, 4, 4), np.uint8)), r"want frames \(F, 3, H, W\) uint8, all of"),
    "frames cut off": (frames(np.zeros((22, 3, 4, 4), np.uint8), cut=1), "want frames|at most"),
    "frames of objects": (frames(np.array([{}], object)), "want at most .* bytes of plain numbers|want frames"),
    "no frames": (lambda folder: (folder / "frames.npy").unlink(), "want a file; got none there"),
    "rows that are too few": (
        lambda folder: np.savez(folder / "rows.npz", action=np.zeros((3, 2))),
        "action: want 22 rows; got 3",
    ),
    "rows of objects": (
        lambda folder: np.savez(folder / "rows.npz", action=np.array([{}] * 22, object)),
        "want at most .* bytes of plain numbers",
    ),
    "rows that are no archive": (lambda folder: (folder / "rows.npz").write_bytes(b"x"), "want arrays of numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_strangers_store_is_checked(folder: Path, name: str) -> None:
    spoil, says = BAD[name]
    spoil(folder)
    with pytest.raises(ValueError, match=says) as error:
        load_demonstrations(folder, device="cpu")
    assert "\n" not in str(error.value)
