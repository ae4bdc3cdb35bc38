"""Trials in a process of their own: what they find, what ends only them, and what is kept of it."""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
from pathlib import Path

import pytest

from torchrl_gpu import proofs
from torchrl_gpu.cache import private_folder

ON = {"driver": "1.0"}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of verdicts with nothing in it, and a process that knows none."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TORCHRL_GPU_CACHE", str(folder))
    monkeypatch.setattr(proofs, "_VERDICTS", {})
    return folder


def trial(how: str, tmp_path: Path, **depends_on: str) -> proofs.Trial:
    arguments = (how, str(tmp_path / "calls"))
    return proofs.Trial(f"what {how}", "tests.trial_checks:check", arguments, {"how": how, **ON, **depends_on})


def calls(tmp_path: Path) -> list[int]:
    """The process of every call so far."""
    path = tmp_path / "calls"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("works", ""),
        ("is wrong", "wrong numbers"),
        ("raises", "RuntimeError: no such architecture"),
        ("crashes", "a trial in a process of its own died of SIGSEGV"),
        ("ends", "a trial in a process of its own ended with status 3: the driver is too old"),
    ],
)
def test_a_trial_ends_nothing_but_itself_and_is_made_once(how: str, found: str, tmp_path: Path) -> None:
    assert proofs.problem(trial(how, tmp_path)) == found
    assert proofs.problem(trial(how, tmp_path)) == found
    proofs._VERDICTS.clear()  # as another process begins
    assert proofs.problem(trial(how, tmp_path)) == found
    (process,) = calls(tmp_path)
    assert process != os.getpid()


def test_one_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "LIMIT_S", 1.0)
    assert proofs.problem(trial("hangs", tmp_path)) == "no answer within 1 seconds"
    for process in calls(tmp_path):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_what_a_verdict_depends_on_makes_another(tmp_path: Path) -> None:
    for number, driver in enumerate(("1.0", "2.0", "1.0"), start=1):
        assert proofs.problem(trial("works", tmp_path, driver=driver)) == ""
        assert len(calls(tmp_path)) == min(number, 2)


def test_it_is_tried_anew_once_where_that_is_asked_for(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proofs, "_reads_disk", True)  # and again when this test is over
    proofs.record(trial("works", tmp_path), "an old problem")
    assert proofs.problem(trial("works", tmp_path)) == "an old problem"
    proofs.try_anew()
    assert proofs.problem(trial("works", tmp_path)) == proofs.problem(trial("works", tmp_path)) == ""
    assert len(calls(tmp_path)) == 1
    monkeypatch.setattr(proofs, "_reads_disk", True)
    proofs._VERDICTS.clear()
    assert proofs.known_problem(trial("works", tmp_path)) == ""  # the next process's
    assert len(list(empty_cache.iterdir())) == 1


def test_without_a_process_of_its_own_it_is_tried_here_and_not_kept(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proofs.problem(trial("busy", tmp_path)) == "Unavailable: the device takes one process"  # here, too
    assert calls(tmp_path)[1] == os.getpid() != calls(tmp_path)[0]
    monkeypatch.setattr(sys, "executable", "")
    assert proofs.problem(trial("works", tmp_path)) == ""
    assert calls(tmp_path)[2] == os.getpid()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no interpreter"))
    assert proofs.problem(trial("is wrong", tmp_path)) == "wrong numbers"
    assert list(empty_cache.iterdir()) == []


def kept(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize(
    "spoilt",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"problem": ""}',
        b'{"problem": null, "depends_on": {"how": "is wrong", "driver": "1.0"}}',
        b'{"problem": "two\\nlines", "depends_on": {"how": "is wrong", "driver": "1.0"}}',
        b'{"problem": "", "depends_on": {"how": "is wrong", "driver": "2.0"}}',
        b"[" * 100_000,
    ],
)
def test_a_spoilt_file_is_no_verdict(spoilt: bytes, tmp_path: Path, empty_cache: Path) -> None:
    proofs.record(trial("is wrong", tmp_path), "wrong numbers")
    assert proofs.known_problem(trial("is wrong", tmp_path)) == "wrong numbers"
    kept(empty_cache).write_bytes(spoilt)
    proofs._VERDICTS.clear()
    assert proofs.known_problem(trial("is wrong", tmp_path)) is None


def test_the_file_says_what_it_is_of(tmp_path: Path, empty_cache: Path) -> None:
    proofs.record(trial("is wrong", tmp_path), "wrong numbers")
    told = json.loads(kept(empty_cache).read_text())
    assert told == {
        "tried": "what is wrong",
        "depends_on": {"how": "is wrong", "driver": "1.0"},
        "problem": "wrong numbers",
    }


def test_others_cannot_write_a_verdict(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proofs.record(trial("is wrong", tmp_path), "")
    empty_cache.chmod(0o777)
    proofs._VERDICTS.clear()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert proofs.known_problem(trial("is wrong", tmp_path)) is None
    folder = private_folder()
    assert folder is not None
    assert folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_without_a_folder_verdicts_last_as_long_as_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "private_folder", lambda: None)
    proofs.record(trial("works", tmp_path), "")
    assert proofs.known_problem(trial("works", tmp_path)) == ""
    proofs._VERDICTS.clear()
    assert proofs.known_problem(trial("works", tmp_path)) is None


def test_it_says_that_it_tries(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        proofs.problem(trial("works", tmp_path))
        proofs.problem(trial("works", tmp_path))
    (record,) = caplog.records
    assert record.getMessage().startswith("torchrl_gpu tries what works, once on this machine")


def test_a_program_that_is_replaced_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert proofs.program("cc", None, "gcc") == ""
    for text in ("#!/bin/sh", "#!/bin/sh\n"):
        (tmp_path / "gcc").write_text(text)
        (tmp_path / "gcc").chmod(0o755)
        assert proofs.program("cc", None, "gcc").startswith(f"{tmp_path / 'gcc'} {len(text)} ")
