"""Files and folders that are written next to their place.

Locks keep one program from another.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torchrl_gpu.system import locks
from torchrl_gpu.system.parts import Part

pytest.importorskip("fcntl")
_HOLDS = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_part_has_its_name_at_the_end(is_folder: bool, tmp_path: Path) -> None:
    part = Part(tmp_path / "deep" / "it", "Writer", is_folder=is_folder)
    assert not part.path.exists()
    assert part.part.is_dir() == is_folder
    part.publish()
    assert part.path.is_dir() == is_folder
    assert not part.part.exists()
    Part(tmp_path / "other", "Writer", is_folder=is_folder).discard()
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_part_that_another_program_writes_is_left_alone(is_folder: bool, tmp_path: Path) -> None:
    path, part = tmp_path / "it", tmp_path / "it.part"
    content = part / "rows" if is_folder else part
    content.parent.mkdir(exist_ok=True)
    content.write_text("of the other")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _HOLDS, str(part)], stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FileExistsError, match=r"written by") as refused:
            Part(path, "Writer", is_folder=is_folder)
        holder.kill()
    assert content.read_text() == "of the other"
    assert str(refused.value).startswith(f"Writer: {path} is being written by ")
    if Path("/proc/self/fd").is_dir():
        assert f"process {holder.pid} (" in str(refused.value)
    # The killed program left this.
    ours = Part(path, "Writer", is_folder=is_folder)
    assert not is_folder or not content.exists()
    with pytest.raises(FileExistsError, match=r"written by"):
        Part(path, "Writer", is_folder=is_folder)
    ours.publish()
    assert path.exists()


def test_a_lock_of_what_was_renamed_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "it.part"
    folder.mkdir()
    monkeypatch.setattr("fcntl.flock", lambda *_: folder.rename(tmp_path / "it"))
    with pytest.raises(BlockingIOError, match="renamed"):
        locks.lock(folder)


def test_a_system_without_locks_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks, "_told", False)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert locks.lock(tmp_path) is None
    assert locks.lock(tmp_path) is None
    assert len(caplog.records) == 1
