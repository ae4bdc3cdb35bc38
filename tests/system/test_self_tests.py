"""Self-tests: their results, their subprocesses and the cache.

A failure ends only its subprocess.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
from pathlib import Path

import pytest

from torchrl_gpu.system import self_tests
from torchrl_gpu.system.cache import private_folder
from torchrl_gpu.system.self_tests import SelfTest

ON = {"driver": "1.0"}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TORCHRL_GPU_CACHE", str(folder))
    monkeypatch.setattr(self_tests, "KNOWN_FAILURES", {})
    return folder


def self_test(how: str, tmp_path: Path, forks: bool = False, **depends_on: str) -> SelfTest:
    arguments, depends = (how, str(tmp_path / "calls")), {"how": how, **ON, **depends_on}
    return SelfTest(f"what {how}", "tests.functions_of_self_tests:run", arguments, depends, forks)


def calls(tmp_path: Path) -> list[int]:
    path = tmp_path / "calls"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("works", ""),
        ("is wrong", "wrong numbers"),
        ("raises", "RuntimeError: no such architecture"),
        ("crashes", "the subprocess of its self-test died of SIGSEGV"),
        ("ends", "the subprocess of its self-test ended with status 3: the driver is too old"),
    ],
)
def test_a_self_test_ends_nothing_but_itself_and_runs_once(how: str, found: str, forks: bool, tmp_path: Path) -> None:
    assert self_test(how, tmp_path, forks).failure() == found
    assert self_test(how, tmp_path, forks).failure() == found
    # Another process begins like this.
    self_tests.KNOWN_FAILURES.clear()
    assert self_test(how, tmp_path, forks).failure() == found
    processes = calls(tmp_path)
    # A subprocess tells failures.
    assert len(processes) == (2 if forks and sys.platform == "linux" and found else 1)
    assert os.getpid() not in processes


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")
def test_self_test_in_a_fork_needs_no_subprocess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_tests, "_run_in_subprocess", None)
    assert self_test("works", tmp_path, forks=True).failure() == ""


@pytest.mark.parametrize("forks", [False, True])
def test_self_test_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forks: bool) -> None:
    monkeypatch.setattr(self_tests, "LIMIT_S", 1.0)
    monkeypatch.setattr(self_tests, "_FORK_S", 1.0)
    assert self_test("hangs", tmp_path, forks).failure() == "no answer within 1 seconds"
    for process in calls(tmp_path):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_self_test_runs_again_when_what_it_depends_on_changes(tmp_path: Path) -> None:
    for number, driver in enumerate(("1.0", "2.0", "1.0"), start=1):
        assert self_test("works", tmp_path, driver=driver).failure() == ""
        assert len(calls(tmp_path)) == min(number, 2)


def test_forgotten_results_are_found_once(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # monkeypatch restores it when this test is over.
    monkeypatch.setattr(self_tests, "reads_disk", True)
    self_test("works", tmp_path).keep("an old failure")
    assert self_test("works", tmp_path).failure() == "an old failure"
    self_tests.forget_results()
    assert self_test("works", tmp_path).failure() == self_test("works", tmp_path).failure() == ""
    assert len(calls(tmp_path)) == 1
    monkeypatch.setattr(self_tests, "reads_disk", True)
    self_tests.KNOWN_FAILURES.clear()
    # This is the next process's result.
    assert self_test("works", tmp_path).known_failure() == ""
    assert len(list(empty_cache.iterdir())) == 1


def test_self_test_without_a_subprocess_runs_here(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Here, too.
    assert self_test("busy", tmp_path).failure() == "Unavailable: the device takes one process"
    assert calls(tmp_path)[1] == os.getpid() != calls(tmp_path)[0]
    monkeypatch.setattr(sys, "executable", "")
    assert self_test("works", tmp_path).failure() == ""
    assert calls(tmp_path)[2] == os.getpid()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no interpreter"))
    assert self_test("is wrong", tmp_path).failure() == "wrong numbers"
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
        b'{"failure": ""}',
        b'{"failure": null, "depends_on": {"how": "is wrong", "driver": "1.0"}}',
        b'{"failure": "two\\nlines", "depends_on": {"how": "is wrong", "driver": "1.0"}}',
        b'{"failure": "", "depends_on": {"how": "is wrong", "driver": "2.0"}}',
        b"[" * 100_000,
    ],
)
def test_spoilt_file_is_no_self_test_result(spoilt: bytes, tmp_path: Path, empty_cache: Path) -> None:
    self_test("is wrong", tmp_path).keep("wrong numbers")
    assert self_test("is wrong", tmp_path).known_failure() == "wrong numbers"
    kept(empty_cache).write_bytes(spoilt)
    self_tests.KNOWN_FAILURES.clear()
    assert self_test("is wrong", tmp_path).known_failure() is None


def test_self_test_file_describes_its_test(tmp_path: Path, empty_cache: Path) -> None:
    self_test("is wrong", tmp_path).keep("wrong numbers")
    told = json.loads(kept(empty_cache).read_text())
    assert told == {
        "self-test": "what is wrong",
        "depends_on": {"how": "is wrong", "driver": "1.0"},
        "failure": "wrong numbers",
    }


def test_other_users_cannot_write_a_self_test_result(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    self_test("is wrong", tmp_path).keep("")
    empty_cache.chmod(0o777)
    self_tests.KNOWN_FAILURES.clear()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert self_test("is wrong", tmp_path).known_failure() is None
    folder = private_folder()
    assert folder is not None
    assert folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_without_a_folder_results_last_as_long_as_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_tests, "private_folder", lambda: None)
    self_test("works", tmp_path).keep("")
    assert self_test("works", tmp_path).known_failure() == ""
    self_tests.KNOWN_FAILURES.clear()
    assert self_test("works", tmp_path).known_failure() is None


def test_self_test_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.INFO):
        self_test("works", tmp_path).failure()
        self_test("works", tmp_path).failure()
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.INFO, "self-test of what works, once on this machine")
    monkeypatch.setattr(self_tests, "_NOTICE_S", 0.0)
    assert self_test("is wrong", tmp_path).failure() == "wrong numbers"
    matching = [each for each in caplog.records if each.levelno == logging.WARNING]
    (record,) = matching
    assert record.getMessage().startswith("self-test of what is wrong, once on this machine: up to a minute")
