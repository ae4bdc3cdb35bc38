"""Self-tests of compiled kernels and codecs, cached on this machine.

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
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from torchrl_gpu.system.cache import private_folder

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger(__name__)

# Time limit of a self-test, the import of torch and all compilation included.
LIMIT_S = 300.0

# Begins the line with a subprocess's result.
_MARK = "torchrl_gpu.system.self_tests "

# Of a failure's description.
_MOST_CHARACTERS = 400

# A self-test that takes longer is announced.
_NOTICE_S = 10.0

# A fork that has not passed by then is given up, and a subprocess tried.
_FORK_S = 20.0
_PASSED = b"1"


class Unavailable(Exception):
    """A self-test cannot run in a subprocess, as where a device takes only one."""


class SelfTest(NamedTuple):
    """Self-test of a kernel, codec or other feature on this machine.

    Attributes:
        name: Of what is tested, for log lines.
        function: "module:function", which returns why the feature fails, or "" where it works. Any exception but
            `Unavailable` is a failure, too.
        arguments: Of the function. The result does not depend on them by themselves.
        depends_on: Versions, device, driver, sources: all that the result depends on.
        forks: Try a fork of this process first, which has everything imported. For what needs no GPU.
    """

    name: str
    function: str
    arguments: tuple[str, ...]
    depends_on: dict[str, str]
    forks: bool = False

    def failure(self) -> str:
        """Why the feature fails here, in one line, or "" where it works.

        The test runs unless its result is known.
        """
        known = self.known_failure()
        if known is not None:
            return known
        _LOG.info("self-test of %s, once on this machine", self.name)
        if self.forks and _passes_in_fork(self):
            self.keep("")
            return ""
        try:
            found = _run_in_subprocess(self)
        except Unavailable as reason:
            _LOG.info("self-test of %s in this process: %s", self.name, reason)
            found = run_here(lambda: function_of(self.function)(*self.arguments))
            # Not on disk: it may have failed for want of memory.
            KNOWN_FAILURES[self._key] = found
            return found
        self.keep(found)
        return found

    def known_failure(self) -> str | None:
        """Failure found by an earlier run, "" for success, or None without a run."""
        if self._key not in KNOWN_FAILURES:
            found = self._read()
            if found is not None:
                KNOWN_FAILURES[self._key] = found
        return KNOWN_FAILURES.get(self._key)

    def keep(self, failure: str) -> None:
        """Store a result for this process and for later ones."""
        KNOWN_FAILURES[self._key] = failure
        path = self._path()
        if path is None:
            return
        content = {"self-test": self.name, "depends_on": self.depends_on, "failure": failure}
        text = json.dumps(content, indent=1)
        # Other processes write the file, too, so it is renamed into its place.
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            made.write_text(text, encoding="utf-8")
            made.replace(path)

    @property
    def _key(self) -> str:
        text = json.dumps([self.function, self.depends_on], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def _path(self) -> Path | None:
        folder = private_folder()
        return None if folder is None else folder / f"self-test-{self._key}.json"

    def _read(self) -> str | None:
        path = self._path() if reads_disk else None
        try:
            content: object = json.loads(path.read_text(encoding="utf-8")) if path is not None else None
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(content, dict) or content.get("depends_on") != self.depends_on:
            return None
        failure = content.get("failure")
        is_line = isinstance(failure, str) and failure == one_line(failure)
        return failure if is_line else None


# Results that this process knows, by `SelfTest._key`.
KNOWN_FAILURES: dict[str, str] = {}
reads_disk = True


def forget_results() -> None:
    """Discard cached results, so that this process uses only those that it finds."""
    global reads_disk
    reads_disk = False
    KNOWN_FAILURES.clear()


def run_here(function: Callable[[], str]) -> str:
    """Failure that a function returns or raises in this process."""
    # A compiler, a driver or a kernel may raise anything.
    try:
        return one_line(function())
    except Exception as error:
        return reason(error)


def reason(error: BaseException) -> str:
    """One-line text of an error."""
    return one_line(f"{type(error).__name__}: {error}").removesuffix(":")


def one_line(text: str) -> str:
    """Text in one line of at most `_MOST_CHARACTERS`."""
    flat = " ".join(str(text).split())
    if len(flat) <= _MOST_CHARACTERS:
        return flat
    return flat[: _MOST_CHARACTERS - 1] + "…"


def usable(device: str) -> torch.device:
    """Device of a name, once a small computation on it has succeeded.

    Raises:
        Unavailable: It has not.
    """
    import torch

    found = torch.device(device)
    # The device may be held by another process, out of memory, or on another machine.
    try:
        ones = torch.ones(2, device=found, dtype=torch.float32)
        right = int((ones + 1).sum()) == 4
    except Exception as error:
        raise Unavailable(f"{device} cannot be used: {reason(error)}") from error
    if not right:
        raise Unavailable(f"{device} adds one and one to something else")
    return found


def _passes_in_fork(test: SelfTest) -> bool:
    """Whether a fork of this process passes.

    A fork lacks the threads of this process, so where it does not pass a subprocess has to tell.
    """
    if sys.platform != "linux":
        return False
    reading, writing = os.pipe()
    with open(reading, "rb") as answer:
        try:
            with warnings.catch_warnings():
                # Python warns of forks of processes with threads.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
        except OSError:
            os.close(writing)
            return False
        if child == 0:
            _answer(test, writing)
        os.close(writing)
        passed = bool(select.select([answer], [], [], _FORK_S)[0]) and answer.read(1) == _PASSED
    # A fork that hangs would be waited for, and one that has answered has nothing left to do.
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return passed


def _answer(test: SelfTest, to: int) -> NoReturn:
    """Write `_PASSED` if a test passes, and end this fork."""
    try:
        import torch

        # The threads of OpenMP are not forked, and would be waited for.
        torch.set_num_threads(1)
        if not function_of(test.function)(*test.arguments):
            os.write(to, _PASSED)
    finally:
        os._exit(0)


def _run_in_subprocess(test: SelfTest) -> str:
    if not sys.executable:
        raise Unavailable("the Python interpreter is not known")
    # The subprocess must import what this process would; "-P" keeps the folder that it starts in out of that.
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    given = json.dumps(test.arguments)
    words = [sys.executable, "-P", "-m", "torchrl_gpu.system.self_tests", test.function, given]
    # In a session of its own, so that its compilers are killed with it.
    try:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
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
                _kill(child)
            child.communicate()
    return _result(child.returncode, out, err)


def _kill(child: subprocess.Popen[str]) -> None:
    """Kill a subprocess, and where the system can what it has started."""
    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()


def _result(status: int, out: str, err: str) -> str:
    """Failure that a subprocess printed, or how it ended without a result."""
    results = [line for line in out.splitlines() if line.startswith(_MARK)]
    if results and status == 0:
        last = results[-1]
        result = json.loads(last.removeprefix(_MARK))
        if "unavailable" in result:
            raise Unavailable(result["unavailable"])
        return str(result["failure"])
    how = f"ended with status {status}"
    if status < 0:
        with contextlib.suppress(ValueError):
            how = f"died of {signal.Signals(-status).name}"
    failure = f"the subprocess of its self-test {how}"
    printed = [line for line in err.splitlines() if line.strip()]
    if printed:
        failure += f": {printed[-1]}"
    return one_line(failure)


def function_of(name: str) -> Callable[..., str]:
    """Import a function by "module:function"."""
    module, _, function = name.partition(":")
    found: Callable[..., str] = getattr(importlib.import_module(module), function)
    return found


def _main(function: str, arguments: str) -> None:
    """Run a self-test in this process, print its result and end."""
    # A compiler, a driver or a kernel may raise anything.
    try:
        result = {"failure": one_line(function_of(function)(*json.loads(arguments)))}
    except Unavailable as error:
        result = {"unavailable": one_line(str(error))}
    except Exception as error:
        result = {"failure": reason(error)}
    print(f"\n{_MARK}{json.dumps(result)}", flush=True)
    # Without an orderly exit: the faults of a driver in it do not count.
    os._exit(0)


if __name__ == "__main__":
    # The imported module's `Unavailable`, which self-tests raise, is another class than that of `__main__`.
    from torchrl_gpu.system import self_tests

    self_tests._main(*sys.argv[1:])
