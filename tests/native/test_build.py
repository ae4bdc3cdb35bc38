"""Compilers for the kernels: finding one, running it once, keeping what it made.

Most tests have a compiler that only copies.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tests.native.compilers import loaded_path
from torchrl_gpu.native import CompilerError, build

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the compilers of these tests are shell scripts")

VERSION = 'case "$*" in *--version) echo copy 1.0; exit;; esac\n'
Script = Callable[..., Path]


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with no compiler and an empty cache.

    Nothing is remembered between calls.
    """
    for name in ("library", "problem"):
        monkeypatch.setattr(build, name, getattr(build, name).__wrapped__)
    for name in ("CXX", "CXXFLAGS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    for name, variable in (("bin", "PATH"), ("home", "HOME"), ("cache", "TORCHRL_GPU_CACHE")):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(variable, str(tmp_path / name))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


@pytest.fixture(scope="session")
def empty_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    (folder / "empty.cpp").touch()
    try:
        command = [*build.compiler(), "-shared", "-fPIC", str(folder / "empty.cpp"), "-o", str(folder / "empty.so")]
    except CompilerError as error:
        pytest.skip(f"needs a C++ compiler: {error}")
    subprocess.run(command, check=True, timeout=600)
    return folder / "empty.so"


@pytest.fixture
def script(tmp_path: Path, empty_library: Path) -> Script:
    """A function that puts a compiler on the PATH.

    The compiler writes down its arguments, does what it is told, and copies a ready library.
    """

    def make(name: str = "c++", before: str = "") -> Path:
        path = tmp_path / "bin" / name
        copy = f'for last; do :; done\n/bin/cp {empty_library} "$last"\n'
        path.write_text(f'#!/bin/sh\n{VERSION}echo "$@" >> {tmp_path}/calls\n{before}\n{copy}')
        path.chmod(0o755)
        return path

    return make


def calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return path.read_text().splitlines() if path.exists() else []


def made(tmp_path: Path, folder: str = "cache") -> list[Path]:
    return sorted((tmp_path / folder).iterdir())


# -- which compiler ------------------------------------------------------------------------------------------------


def test_without_a_compiler_the_problem_names_the_extra_that_brings_one() -> None:
    problem = build.problem()
    assert "none of c++, g++, clang++ is on the PATH" in problem
    assert "[compiler]" in problem
    with pytest.raises(CompilerError, match="no C\\+\\+ compiler"):
        build.library()


def test_a_named_compiler_that_is_missing_is_among_those_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "icpx -fast")
    assert "none of icpx -fast, c++, g++, clang++ is on the PATH" in build.problem()


def test_the_named_compiler_comes_first_then_the_usual_ones(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    monkeypatch.setitem(sys.modules, "ziglang", ModuleType("ziglang"))
    assert build.compiler() == (sys.executable, "-m", "ziglang", "c++")
    assert build.name_of(build.compiler()) == "the compiler of the package ziglang"
    for name in ("clang++", "g++", "c++"):
        path = script(name)
        assert build.compiler() == (str(path),)
    wrapped = script("ccache")
    monkeypatch.setenv("CXX", "ccache 'my c++' -m64")
    assert build.compiler() == (str(wrapped), "my c++", "-m64")
    monkeypatch.setenv("CXX", "missing -m64")
    assert build.compiler() == (str(path),)


# -- what it is told ----------------------------------------------------------------------------------------------


def test_one_call_makes_the_library(tmp_path: Path, script: Script, caplog: pytest.LogCaptureFixture) -> None:
    script()
    build.library()
    (call,) = calls(tmp_path)
    # A warning is shown where nobody has set up logging.
    (record,) = caplog.records
    assert record.getMessage().startswith("torchrl_gpu compiles its kernels with ")
    assert "-O3" in call
    assert "-pthread" in call
    assert "-march=native" in call
    # No folder of the compiler is left.
    assert [path.suffix for path in made(tmp_path)] == [".so"]


@pytest.mark.parametrize(
    ("refused", "taken"),
    [
        ("-march=native", "-mcpu=native"),
        ("=native", ""),
    ],
)
def test_flags_that_a_compiler_refuses_are_left_out(tmp_path: Path, script: Script, refused: str, taken: str) -> None:
    refuse = "".join(f'case "$*" in *{flag}*) echo "error: {flag}?" >&2; exit 1;; esac\n' for flag in refused.split())
    script(before=refuse)
    build.library()
    last = calls(tmp_path)[-1]
    assert last.startswith(
        f"{' '.join(build.COMMON_FLAGS)} {taken} /" if taken else f"{' '.join(build.COMMON_FLAGS)} /"
    )
    assert len(made(tmp_path)) == 1


def test_a_library_that_cannot_be_loaded_is_not_taken(tmp_path: Path, script: Script) -> None:
    spoil = 'case "$*" in *-march=native*) for last; do :; done; echo no library > "$last"; exit;; esac\n'
    script(before=spoil)
    build.library()
    assert "-march=native" not in calls(tmp_path)[-1]


def test_flags_of_the_user_come_last(tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXXFLAGS", "-mno-avx512f -O1")
    script()
    build.library()
    words = calls(tmp_path)[0].split()
    assert words.index("-O1") == words.index("-mno-avx512f") + 1 > words.index("-march=native") > words.index("-O3")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "In file included from x.h:\\nx.h:3:1: error: what is this\\nx.h:4:1: error: and this",
            "x.h:3:1: error: what",
        ),
        ("collect2: ld returned 1\\nand more", "collect2"),
        ("", "does not compile the packing kernels"),
    ],
)
def test_a_compiler_that_fails_is_quoted_in_one_line(tmp_path: Path, script: Script, said: str, told: str) -> None:
    path = script(before=f"printf '{said}' >&2; exit 1")
    problem = build.problem()
    assert problem.startswith(f"{path} does not compile the packing kernels: ")
    assert told in problem
    assert "and this" not in problem
    assert "\n" not in problem
    assert len(calls(tmp_path)) == len(build.VARIANTS)
    assert made(tmp_path) == []


def test_a_compiler_that_makes_nothing_is_a_problem(tmp_path: Path, script: Script) -> None:
    script(before="exit 0")
    assert "does not compile the packing kernels" in build.problem()
    assert made(tmp_path) == []


def test_a_compiler_that_does_not_run_is_a_problem(script: Script) -> None:
    path = script()
    path.write_bytes(b"\0\1\2")
    assert build.problem().startswith(f"{path} does not run: ")


# -- what is kept ----------------------------------------------------------------------------------------------------


def started() -> subprocess.Popen[str]:
    """Start a process that loads the library and says which.

    It imports the module alone, to save time.
    """
    code = (
        f"import importlib.util as u; s = u.spec_from_file_location('build', {build.__file__!r});"
        "m = u.module_from_spec(s); s.loader.exec_module(m); print(m.library()._name)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    said = [process.communicate(timeout=600) for process in processes]
    return [(p.returncode, out.strip(), err) for p, (out, err) in zip(processes, said, strict=True)]


def test_two_processes_may_compile_at_once(tmp_path: Path, script: Script) -> None:
    # Neither compiler is done before both have begun, or one has asked often enough.
    both = f'[ "$(/usr/bin/wc -l < {tmp_path}/calls)" -ge 2 ]'
    script(before=f"n=0; until {both} || [ $n -ge 5000 ]; do n=$((n + 1)); done")
    first, second = ended([started(), started()])
    (path,) = made(tmp_path)
    # It finds the library of the others.
    third = ended([started()])[0]
    assert first[:2] == second[:2] == third[:2] == (0, str(path))
    assert third[2] == ""
    assert len(calls(tmp_path)) == 2


def test_a_changed_compiler_flag_processor_or_source_makes_another(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script()
    build.library()
    sources = tmp_path / "sources"
    sources.mkdir()
    for source in build.FOLDER.glob("*.*"):
        (sources / source.name).write_bytes(source.read_bytes())
    (sources / "lanes.h").write_text("// changed\n")
    changes: list[Callable[[], object]] = [
        lambda: monkeypatch.setenv("CXX", "c++ -m64"),
        lambda: monkeypatch.setenv("CXXFLAGS", "-mno-avx512f"),
        lambda: monkeypatch.setattr(build, "_processor", lambda: "another"),
    ]
    changes += [
        lambda: monkeypatch.setattr(build, "_version", lambda command: "copy 2.0"),
        lambda: monkeypatch.setattr(build, "VARIANTS", ((),)),
        lambda: monkeypatch.setattr(build, "FOLDER", sources),
    ]
    for number, change in enumerate(changes, start=2):
        change()
        build.library()
        build.library()
        assert len(calls(tmp_path)) == len(made(tmp_path)) == number


def test_a_spoilt_file_is_named(tmp_path: Path, script: Script) -> None:
    script()
    # It runs in another process, since what has been loaded once stays loaded here.
    ended([started()])
    (path,) = made(tmp_path)
    path.write_text("not a library")
    problem = build.problem()
    assert problem.startswith(f"{path} cannot be loaded: ")
    assert problem.endswith("delete it to have it made again")


# -- where ------------------------------------------------------------------------------------------------------------


def test_without_a_named_folder_the_users_cache_is_used(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script()
    monkeypatch.delenv("TORCHRL_GPU_CACHE")
    build.library()
    assert len(made(tmp_path, "home/.cache/torchrl_gpu")) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    build.library()
    assert len(made(tmp_path, "xdg/torchrl_gpu")) == 1
    assert stat.S_IMODE((tmp_path / "xdg" / "torchrl_gpu").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, script: Script, mode: int) -> None:
    script()
    build.library()
    (path,) = made(tmp_path)
    (tmp_path / "cache").chmod(mode)
    assert loaded_path().parent == tmp_path / "tmp" / f"torchrl_gpu-{os.getuid()}"
    assert made(tmp_path) == [path]
    # Files that lie there are not used either.
    assert len(calls(tmp_path)) == 2


def test_what_is_no_folder_is_not_used(tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    script()
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHRL_GPU_CACHE", str(tmp_path / "file"))
    assert loaded_path().parent.parent == tmp_path / "tmp"


def test_another_users_folders_are_not_used(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    script()
    another = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: another)
    assert build.problem() == (
        "no folder for compiled kernels that is writable, and by this user alone; set TORCHRL_GPU_CACHE"
    )


def test_a_user_without_a_home_has_a_cache_all_the_same(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home(path: Path) -> Path:
        if str(path).startswith("~"):
            raise RuntimeError("Could not determine home directory.")
        return path

    script()
    monkeypatch.setattr(Path, "expanduser", no_home)
    assert loaded_path().parent == tmp_path / "cache"
    monkeypatch.delenv("TORCHRL_GPU_CACHE")
    assert loaded_path().parent.parent == tmp_path / "tmp"


# -- what came with a wheel ------------------------------------------------------------------------------------------


@pytest.fixture
def wheel(tmp_path: Path, empty_library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library of a wheel, on a processor that can run it."""
    shutil.copytree(build.FOLDER, tmp_path / "native")
    monkeypatch.setattr(build, "FOLDER", tmp_path / "native")
    monkeypatch.setattr(build, "_use_prebuilt", True)
    monkeypatch.setattr(build, "_processor", lambda: f"flags : sse {' '.join(build.BASELINE_SETS)} avx")
    shutil.copy(empty_library, build.prebuilt_path())
    return build.prebuilt_path()


def test_the_library_of_a_wheel_serves_without_a_compiler_and_with_one(
    wheel: Path, tmp_path: Path, script: Script
) -> None:
    assert loaded_path() == wheel
    script()
    assert loaded_path() == wheel
    assert calls(tmp_path) == []


def test_one_tuned_for_this_machine_takes_its_place(wheel: Path, tmp_path: Path, script: Script) -> None:
    script()
    build.tune()
    build.tune()
    assert len(calls(tmp_path)) == 1
    assert loaded_path() == made(tmp_path)[0]


@pytest.mark.parametrize("which", ["processor", "sources"])
def test_of_another_processor_or_of_other_sources_it_does_not_serve(
    which: str, wheel: Path, tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    if which == "processor":
        monkeypatch.setattr(build, "_processor", lambda: "flags : avx avx2")
    else:
        (wheel.parent / "lanes.h").write_text("// another")
    script()
    assert loaded_path() == made(tmp_path)[0]


def test_one_that_fails_its_self_test_is_left_with_a_line(
    wheel: Path, tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script()
    monkeypatch.setattr(build, "library", cache(build.library))
    monkeypatch.setattr(build.SelfTest, "failure", lambda test: "no" if wheel.name in str(test.depends_on) else "")
    assert build.problem() == ""
    assert loaded_path() == made(tmp_path)[0]
    assert f"{wheel.name} is not used: no" in caplog.text


def test_the_compilers_own_files_lie_beside_the_library(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's temporary files go beside the library.

    Where the disk of TMPDIR is full, it would fail next to a cache with room.
    """
    monkeypatch.setenv("TMPDIR", "/nowhere")
    script(before=f'echo "$TMPDIR" >> {tmp_path}/temporary')
    build.library()
    (temporary,) = set((tmp_path / "temporary").read_text(encoding="utf-8").split())
    assert Path(temporary).is_relative_to(tmp_path / "cache")
