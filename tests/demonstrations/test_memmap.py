"""Demonstrations and clip stores on disk.

They are the same bit for bit, read by tensordict too, and strangers' faulty ones are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tests.demonstrations import row_files
from torchrl_gpu.demonstrations import (
    ClipStore,
    load_demonstrations,
    loading,
    open_store,
    read_demonstrations,
    save_store,
)
from torchrl_gpu.demonstrations.memmap import save
from torchrl_gpu.demonstrations.untrusted import new_folder
from torchrl_gpu.envs import memory


def test_demonstrations_are_read_as_they_were_saved(tmp_path: Path) -> None:
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
    with pytest.raises(ValueError, match=r"state\.memmap: .*.* bytes, \(15, .*\) of float32, not .* bytes"):
        read_demonstrations(folder)


def test_demonstrations_that_were_read_are_saved_again(tmp_path: Path) -> None:
    first = row_files.write_rows(tmp_path / "a")
    second = save(read_demonstrations(first), tmp_path / "b")
    described = [json.loads((folder / "demonstrations.json").read_text()) for folder in (first, second)]
    assert described[0] == described[1]
    with pytest.raises(FileExistsError, match=r"folder exists"):
        save(read_demonstrations(first), tmp_path)


def test_a_file_that_shrinks_after_it_was_read_is_no_matter(tmp_path: Path) -> None:
    shown = read_demonstrations(row_files.write_rows(tmp_path / "a"))
    before = shown.rows["state"].clone()
    (tmp_path / "a" / "rows" / "state.memmap").write_bytes(b"")
    assert torch.equal(shown.rows["state"], before)


def test_demonstrations_too_large_for_memory_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = row_files.write_rows(tmp_path / "a")
    monkeypatch.setattr(memory, "free_bytes", lambda device: 100)
    with pytest.raises(ValueError, match=r"demonstrations\.json: .*80 bytes .*80% "):
        read_demonstrations(folder)


def test_an_index_is_small(tmp_path: Path) -> None:
    """Of 60 MB of empty lists, JSON makes 2.7 GiB."""
    folder = row_files.write_rows(tmp_path / "a")
    index = folder / "rows" / "meta.json"
    index.write_text(index.read_text() + " " * 2**18)
    with pytest.raises(ValueError, match=r"meta.json: JSON .*262,144 bytes, not"):
        read_demonstrations(folder)


@pytest.fixture(scope="module")
def store(dataset: Path) -> ClipStore:
    return load_demonstrations(dataset, device="cpu", size=(12, 16))


@pytest.fixture
def clips(store: ClipStore, tmp_path: Path) -> Path:
    return save_store(store, tmp_path / "clips")


def test_clip_store_opens_as_it_was_saved(store: ClipStore, clips: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "decode", None)
    opened = load_demonstrations(clips, device="cpu")
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


def test_changes_of_an_open_clip_store_are_not_in_the_file(clips: Path) -> None:
    before = (clips / "rows" / "_frames.memmap").read_bytes()
    open_store(clips).frames.zero_()
    assert (clips / "rows" / "_frames.memmap").read_bytes() == before


def test_the_numbers_of_a_store_are_demonstrations(store: ClipStore, clips: Path) -> None:
    shown = read_demonstrations(clips)
    assert set(shown.rows.keys()) == set(store.rows.flatten_keys(".").keys())
    assert torch.equal(shown.rows["action"], store.rows["action"])
    assert shown.lengths.tolist() == store.lengths


def test_a_store_that_breaks_off_has_no_name(store: ClipStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TensorDict, "memmap", full)
    with pytest.raises(OSError, match=r"No space"):
        save_store(store, tmp_path / "clips")
    assert not (tmp_path / "clips").exists()
    monkeypatch.undo()
    assert len(open_store(save_store(store, tmp_path / "clips"))) == len(store), "what was left is written over"


def changed(part: str, **changes: Any) -> Callable[[Path], object]:
    """Other facts about the clips, or about the entry of frames."""

    def spoil(folder: Path) -> None:
        path = folder / "demonstrations.json"
        found = json.loads(path.read_text())
        (found["clips"] if part == "clips" else found["entries"]["_frames"]).update(changes)
        path.write_text(json.dumps(found))

    return spoil


def cut(folder: Path) -> None:
    path = folder / "rows" / "_frames.memmap"
    path.write_bytes(path.read_bytes()[:-1])


"""Beside those of demonstrations of rows alone, which `test_reading.py` has."""


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(changed("clips", fps=None), "fps must be a finite number", id="no rate"),
        pytest.param(changed("clips", image_key=["a"]), "an image_key", id="no key"),
        pytest.param(changed("clips", image_key="a//b"), "names of entries", id="an empty key"),
        pytest.param(changed("clips", tasks=[1]), "tasks by their numbers", id="no tasks"),
        pytest.param(changed("clips", stats=[1]), "stats: .*an object", id="no stats"),
        pytest.param(changed("clips", videos=[{"name": 1}]), "videos of name, frames", id="no videos"),
        pytest.param(changed("frames", stored="float32"), r"frames \(3, H, W\) uint8", id="frames of floats"),
        pytest.param(changed("frames", shape=[1, 12, 16]), r"frames \(3, H, W\) uint8", id="frames of one channel"),
        pytest.param(
            changed("frames", shape=[3, 12, 17]),
            r"_frames: .*uint8 of shape \(22, 3, 12, 17\)",
            id="frames of another size",
        ),
        pytest.param(changed("frames", dtype="float32"), "dtype to be one of uint8", id="frames as numbers"),
        pytest.param(
            cut, r"_frames\.memmap: .*12,672 bytes, \(22, 3, 12, 16\) of uint8, not 12,671 bytes", id="frames cut off"
        ),
    ],
)
def test_a_strangers_store_is_checked(clips: Path, spoil: Callable[[Path], object], says: str) -> None:
    spoil(clips)
    with pytest.raises(ValueError, match=says) as error:
        load_demonstrations(clips, device="cpu")
    assert "\n" not in str(error.value)


def test_a_folder_that_another_program_writes_is_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with new_folder(tmp_path / "it") as part:
        (part / "rows").write_text("of the first", encoding="utf-8")
        with pytest.raises(FileExistsError, match=r"written by"), new_folder(tmp_path / "it"):
            pass
    assert (tmp_path / "it" / "rows").read_text(encoding="utf-8") == "of the first"
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "other"):
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
