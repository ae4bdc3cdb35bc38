"""Self-tests of compiled kernels and codecs, run once per machine in a subprocess and cached.

A chip, its driver and a compiler can make our code fail, hang, crash or compute wrong numbers. A subprocess with a time
limit finds that out without ending the run, or a fork, where it passes and no GPU is needed; the result is cached on
disk, keyed by everything that it depends on.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from torchrl_gpu.system.cache import private_folder

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger(__name__)
_MARK = "torchrl_gpu.system.self_tests "  # begins the line with a subprocess's result
_MOST_CHARACTERS = 400  # of a failure
LIMIT_S = 300.0  # of a self-test, the import of torch and all compilation included
_NOTICE_S = 10.0  # a self-test that takes longer is announced
_FORK_S, _PASSED = 20.0, b"1"


class Unavailable(Exception):
    """A self-test cannot run in a subprocess, for example because the device takes only one process."""


class SelfTest(NamedTuple):
    """Self-test of a kernel, codec or other feature on this machine."""

    name: str  # of what is tested, for log lines
    # "module:function", which returns why the feature fails, "" where it works; an exception but `Unavailable` is a
    # failure, too
    function: str
    arguments: tuple[str, ...]  # of the function; the result does not depend on them by themselves
    depends_on: dict[str, str]  # versions, device, driver, sources: all that the result depends on
    forks: bool = False  # a fork of this process is tried first, which has everything imported: for what needs no GPU

    def failure(self) -> str:
        """Why the feature fails here, in one line; "" where it works. Runs the test unless its result is known."""
        if (known := self.known_failure()) is not None:
            return known
        _LOG.info("self-test of %s, once on this machine", self.name)
        if self.forks and _passes_in_fork(self):
            self.keep("")
            return ""
        try:
            found = _run_in_subprocess(self)
        except Unavailable as reason:
            _LOG.info("self-test of %s in this process: %s", self.name, reason)
            found = run_here(lambda: _function(self.function)(*self.arguments))
            _FAILURES[self._key] = found  # not on disk: it may have failed for want of memory
            return found
        self.keep(found)
        return found

    def known_failure(self) -> str | None:
        """Failure found by an earlier run, "" for success; None where there was no run."""
        if self._key not in _FAILURES and (found := self._read()) is not None:
            _FAILURES[self._key] = found
        return _FAILURES.get(self._key)

    def keep(self, failure: str) -> None:
        """Stores a result for this process and for later ones."""
        _FAILURES[self._key] = failure
        if (path := self._path()) is None:
            return
        text = json.dumps({"self-test": self.name, "depends_on": self.depends_on, "failure": failure}, indent=1)
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            made.write_text(text, encoding="utf-8")
            made.replace(path)  # in one step: other processes write it too

    @property
    def _key(self) -> str:
        text = json.dumps([self.function, self.depends_on], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def _path(self) -> Path | None:
        folder = private_folder()
        return None if folder is None else folder / f"self-test-{self._key}.json"

    def _read(self) -> str | None:
        path = self._path() if _reads_disk else None
        try:
            content: Any = json.loads(path.read_text(encoding="utf-8")) if path is not None else None
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(content, dict) or content.get("depends_on") != self.depends_on:
            return None
        failure = content.get("failure")
        return failure if isinstance(failure, str) and failure == one_line(failure) else None


_FAILURES: dict[str, str] = {}  # known to this process, by `SelfTest._key`
_reads_disk = True


def forget_results() -> None:
    """Discards cached results: from now on this process uses only those that it finds itself."""
    global _reads_disk
    _reads_disk = False
    _FAILURES.clear()


def run_here(function: Callable[[], str]) -> str:
    """Failure that a function returns or raises in this process."""
    try:
        return one_line(function())
    except Exception as error:  # anything that a compiler, a driver or a kernel raises
        return reason(error)


def reason(error: BaseException) -> str:
    """One-line text of an error."""
    return one_line(f"{type(error).__name__}: {error}").removesuffix(":")


def one_line(text: str) -> str:
    """Text in one line of at most `_MOST_CHARACTERS`."""
    flat = " ".join(str(text).split())
    return flat if len(flat) <= _MOST_CHARACTERS else flat[: _MOST_CHARACTERS - 1] + "…"


def usable(device: str) -> torch.device:
    """Device of a name, once a small computation on it has succeeded; else `Unavailable`. For self-tests."""
    import torch

    found = torch.device(device)
    try:
        right = int((torch.ones(2, device=found, dtype=torch.float32) + 1).sum()) == 4
    except Exception as error:  # held by another process, out of memory, on another machine
        raise Unavailable(f"{device} cannot be used: {reason(error)}") from error
    if not right:
        raise Unavailable(f"{device} adds one and one to something else")
    return found


def _passes_in_fork(test: SelfTest) -> bool:
    """True where a fork of this process passes; else a subprocess has to tell, as a fork lacks our threads."""
    if sys.platform != "linux":
        return False
    reading, writing = os.pipe()
    with open(reading, "rb") as answer:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks of processes with threads
                child = os.fork()
        except OSError:
            os.close(writing)
            return False
        if child == 0:
            _answer(test, writing)
        os.close(writing)
        passed = bool(select.select([answer], [], [], _FORK_S)[0]) and answer.read(1) == _PASSED
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return passed


def _answer(test: SelfTest, to: int) -> NoReturn:
    """Writes `_PASSED` if a test passes, and ends this fork. One thread, since those of OpenMP are not forked."""
    try:
        import torch

        torch.set_num_threads(1)
        if not _function(test.function)(*test.arguments):
            os.write(to, _PASSED)
    finally:
        os._exit(0)


def _run_in_subprocess(test: SelfTest) -> str:
    if not sys.executable:
        raise Unavailable("the Python interpreter is not known")
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "torchrl_gpu.system.self_tests", test.function, json.dumps(test.arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,  # its compilers are killed with it
        )
    except OSError as error:
        raise Unavailable(f"no subprocess: {error}") from error
    announce = "self-test of %s, once on this machine: up to a minute where much is compiled"
    notice = threading.Timer(_NOTICE_S, _LOG.warning, (announce, test.name))
    notice.start()
    try:
        out, err = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"no answer within {LIMIT_S:.0f} seconds"
    finally:
        notice.cancel()
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL) if hasattr(os, "killpg") else child.kill()
            child.communicate()
    return _result(child.returncode, out, err)


def _result(status: int, out: str, err: str) -> str:
    last = next((line for line in reversed(out.splitlines()) if line.startswith(_MARK)), None)
    if last is not None and status == 0:
        result = json.loads(last.removeprefix(_MARK))
        if "unavailable" in result:
            raise Unavailable(result["unavailable"])
        return str(result["failure"])
    how = f"ended with status {status}"
    if status < 0:
        with contextlib.suppress(ValueError):
            how = f"died of {signal.Signals(-status).name}"
    printed = next((line for line in reversed(err.splitlines()) if line.strip()), "")
    return one_line(f"the subprocess of its self-test {how}" + (f": {printed}" if printed else ""))


def _function(name: str) -> Callable[..., str]:
    module, _, function = name.partition(":")
    found: Callable[..., str] = getattr(importlib.import_module(module), function)
    return found


def _main(function: str, arguments: str) -> None:
    try:
        result = {"failure": one_line(_function(function)(*json.loads(arguments)))}
    except Unavailable as error:
        result = {"unavailable": one_line(str(error))}
    except Exception as error:  # anything that a compiler, a driver or a kernel raises
        result = {"failure": reason(error)}
    print(f"\n{_MARK}{json.dumps(result)}", flush=True)
    os._exit(0)  # a driver's faults at an orderly exit do not count


if __name__ == "__main__":
    from torchrl_gpu.system import self_tests

    self_tests._main(*sys.argv[1:])  # of the imported module, whose `Unavailable` is not the class of this one
