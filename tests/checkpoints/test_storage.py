"""Checkpoints on storage: whole or not taken.

In memory and in a folder, and nothing from there is trusted.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from torchrl_gpu.checkpoints.files import checkpoint_entry, new_id, newest_checkpoint, part_path, write_whole
from torchrl_gpu.checkpoints.storage import CheckpointStorage
from torchrl_gpu.system.archives import ENTRY

RUN = "0123456789ab"


@pytest.fixture(params=["memory", "file"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStorage]:
    name = uuid.uuid4().hex
    yield CheckpointStorage(f"memory://{name}" if request.param == "memory" else f"file://{tmp_path / name}")
    files = fsspec.filesystem("memory")
    if files.exists(name):
        files.rm(name, recursive=True)


def saved(
    folder: Path, name: str, at_s: float, run: str = RUN, **changes: Any
) -> tuple[dict[str, Any], Path, list[Path]]:
    path, number = folder / f"{name}.ckpt", new_id()
    part = part_path(path, number, 0)
    write_whole({"id": number, "rank": 0, "world_size": 1, "replay": torch.arange(1000)}, part)
    entry = {**checkpoint_entry(run, number, [part], 1), "saved_s": at_s, **changes}
    write_whole({"state_dict": {"a": torch.full((3,), at_s)}, "global_step": int(at_s), ENTRY: entry}, path)
    return entry, path, [part]


def step(folder: Path) -> int | None:
    path, _ = newest_checkpoint(folder)
    return None if path is None else int(torch.load(path, weights_only=True)["global_step"])


def test_the_newest_and_the_best_come_back(storage: CheckpointStorage, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for name, at_s in (("best", 1.0), ("episodes-2", 2.0), ("best", 3.0), ("last", 4.0)):
        storage.put(*saved(here, name, at_s))
    fetched, torn = storage.fetch_newest(there)
    assert [path.name for path in fetched] == ["last.ckpt", "best.ckpt"]
    assert not torn
    assert step(there) == 4
    assert torch.load(there / "best.ckpt", weights_only=True)["global_step"] == 3
    for path in fetched:
        assert path.read_bytes() == (here / path.name).read_bytes()
    assert not list(there.glob(".fetching-*"))


def test_empty_storage_has_none(storage: CheckpointStorage, tmp_path: Path) -> None:
    assert storage.list_remotes() == []
    assert storage.fetch_newest(tmp_path / "there") == ([], [])


@pytest.mark.parametrize("put", [0, 1, 1.5])
def test_half_an_upload_is_not_fetched(
    storage: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: float
) -> None:
    """Killed after so many of the two files."""
    here, there = tmp_path / "here", tmp_path / "there"
    storage.put(*saved(here, "last", 1.0))
    files, _ = storage.open()
    put_file, calls = files.put_file, 0

    def killed(source: str, target: str, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls <= put:
            put_file(source, target, **options)
        elif put % 1:
            files.pipe_file(target, Path(source).read_bytes()[:-200])
        if calls > put:
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "put_file", killed)
    with pytest.raises(KeyboardInterrupt):
        storage.put(*saved(here, "last", 2.0))
    fetched, torn = storage.fetch_newest(there)
    assert [path.name for path in fetched] == ["last.ckpt"]
    assert len(torn) == 1
    assert step(there) == 1


def test_a_part_that_is_missing_or_short_is_noticed(storage: CheckpointStorage, tmp_path: Path) -> None:
    here = tmp_path / "here"
    for content in (None, b"short"):
        entry, path, parts = saved(here, "last", 1.0)
        folder = storage.put(entry, path, parts)
        files, _ = storage.open()
        files.rm_file(f"{folder}/{parts[0].name}")
        if content is not None:
            files.pipe_file(f"{folder}/{parts[0].name}", content)
    fetched, torn = storage.fetch_newest(tmp_path / "there")
    assert fetched == []
    assert len(torn) == 2
    assert not list((tmp_path / "there").glob("*"))


def test_only_old_ones_of_the_run_are_removed(storage: CheckpointStorage, tmp_path: Path) -> None:
    for at_s in range(1, 5):
        storage.put(*saved(tmp_path, f"updates-{at_s}", float(at_s)))
        storage.put(*saved(tmp_path, "best", at_s + 0.5))
    storage.put(*saved(tmp_path, "last", 1.0, run="ffffffffffff"))
    storage.remove_old(RUN, 2)
    left = [(remote.run, remote.stem, remote.saved_ms) for remote in storage.list_remotes()]
    assert left == [
        # The run that was uploaded last counts, whatever its clock says.
        ("ffffffffffff", "last", 1000),
        (RUN, "best", 4500),
        (RUN, "updates-4", 4000),
        (RUN, "updates-3", 3000),
    ]


@pytest.mark.parametrize("clock", [1.0, -1.0, -1e6])
def test_clocks_decide_nothing(storage: CheckpointStorage, tmp_path: Path, clock: float) -> None:
    for number in (1, 2, 3):
        uploaded = storage.put(*saved(tmp_path, f"updates-{number}", float(number), saved_s=clock * number))
        storage.put(*saved(tmp_path, "best", number + 0.5, saved_s=clock * number))
        storage.remove_old(RUN, 1, uploaded)
    assert {(remote.stem, remote.step) for remote in storage.list_remotes()} == {("updates-3", 3), ("best", 3)}
    fetched, _ = storage.fetch_newest(tmp_path / "there")
    assert [path.name for path in fetched] == ["updates-3.ckpt", "best.ckpt"]


def test_within_a_run_updates_decide_not_the_order_of_uploads(storage: CheckpointStorage, tmp_path: Path) -> None:
    """As where a job that is ended still uploads while the next one already does."""
    storage.put(*saved(tmp_path, "updates-300", 300.0))
    uploaded = storage.put(*saved(tmp_path, "last", 16.0, saved_s=1e9))
    assert [remote.step for remote in storage.list_remotes()] == [300, 16]
    storage.remove_old(RUN, 1, uploaded)
    # What was just uploaded never goes at once.
    assert len(storage.list_remotes()) == 2
    # The run has gone back.
    storage.put(*saved(tmp_path, "last", 20.0, generation=1))
    assert [remote.step for remote in storage.list_remotes()] == [20, 300, 16]


def test_the_best_one_is_of_the_run_that_is_fetched(storage: CheckpointStorage, tmp_path: Path) -> None:
    storage.put(*saved(tmp_path, "best", 50.0, run="ffffffffffff"))
    storage.put(*saved(tmp_path, "last", 2.0))
    fetched, _ = storage.fetch_newest(tmp_path / "there")
    assert [path.name for path in fetched] == ["last.ckpt"]


def test_an_upload_that_fails(storage: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.put(*saved(tmp_path, "last", 1.0))
    files, root = storage.open()
    put_file = files.put_file

    def failing(source: str, target: str, **options: Any) -> None:
        put_file(source, target, **options)
        raise ConnectionError("gone")

    monkeypatch.setattr(files, "put_file", failing)
    with pytest.raises(ConnectionError):
        storage.put(*saved(tmp_path, "last", 2.0))
    monkeypatch.setattr(files, "put_file", put_file)
    assert [remote.step for remote in storage.list_remotes()] == [1]
    assert len(files.ls(root, detail=False)) == 1


def test_two_that_remove_at_once(storage: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at_s in (1.0, 2.0, 3.0):
        storage.put(*saved(tmp_path, f"updates-{at_s:.0f}", at_s))
    listed = storage.list_remotes()
    storage.remove_old(RUN, 1)
    # The list is from before the other one removed.
    monkeypatch.setattr(storage, "list_remotes", lambda: listed)
    storage.remove_old(RUN, 1)
    assert storage.fetch_newest(tmp_path / "there")[0]


class Code:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_strangers_files_run_nothing_and_go_nowhere_else(storage: CheckpointStorage, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    here = tmp_path / "here"
    there = tmp_path / "there"
    entry, path, parts = saved(here, "last", 9.0)
    torch.save({"state_dict": {}, "code": Code(mark)}, path)
    storage.put(entry, path, parts)
    entry, path, parts = saved(here, "last", 8.0)
    path.write_bytes(pickle.dumps(Code(mark)))
    storage.put(entry, path, parts)
    entry, path, parts = saved(here, "last", 7.0, parts={"../../outside.pt": 3})
    storage.put(entry, path, parts)
    files, root = storage.open()
    files.makedirs(f"{root}/other", exist_ok=True)
    files.pipe_file(f"{root}/other/last.ckpt", b"none of ours")
    fetched, torn = storage.fetch_newest(there)
    assert fetched == []
    assert len(torn) == 3
    assert not mark.exists()
    assert not list(there.glob("*"))


@pytest.mark.parametrize(
    ("url", "said"),
    [("nothing://a/b", "nothing://a/b"), ("sftp://me:secret@host/a", "password")],
)
def test_urls_that_cannot_be(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        CheckpointStorage(url)
    assert "secret" not in str(caught.value)
