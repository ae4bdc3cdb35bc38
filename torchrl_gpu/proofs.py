"""Trials of what cannot be tried where it is written: each in a process of its own, once per machine and version.

A GPU, its driver and a compiler differ from machine to machine, and what they make of our kernels can fail, hang, crash
or be wrong. None of it may end a run, so it is tried before it is used, where a crash ends nothing but the trial. The
verdict is kept on disk under all that it depends on: the next process reads it in a millisecond.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torchrl_gpu.cache import private_folder

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger(__name__)
_MARK = "torchrl_gpu.proofs "  # begins the line of a verdict
_MOST_CHARACTERS = 400  # of a problem
LIMIT_S = 300.0  # of a trial, the import of torch and all compilation included


class Unavailable(Exception):
    """A trial could not be made in a process of its own, for example because the device takes only one process."""


class Trial(NamedTuple):
    """Something to try.

    Attributes:
        name: What is tried, for people.
        check: "module:function"; the function gives the reason why it does not work here, "" where it does. An error
            that it raises is a reason, too, but for `Unavailable`.
        arguments: What it is called with; the verdict does not depend on them by themselves.
        depends_on: All that the verdict depends on: versions, device, sources.
    """

    name: str
    check: str
    arguments: tuple[str, ...]
    depends_on: dict[str, str]

    @property
    def identity(self) -> str:
        """A name for files, made from all that the verdict depends on."""
        told = json.dumps([self.check, self.depends_on], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:24]


_VERDICTS: dict[str, str] = {}  # of this process, by identity
_reads_disk = True


def problem(trial: Trial) -> str:
    """Why something does not work here, in one line; "" where it does. Tried unless a verdict is known."""
    if (known := known_problem(trial)) is not None:
        return known
    _LOG.warning("torchrl_gpu tries %s, once on this machine: seconds, or a minute where much is compiled", trial.name)
    try:
        found = _tried_apart(trial)
    except Unavailable as reason:
        _LOG.info("trying %s in this process: %s", trial.name, reason)
        found = tried_here(lambda: _function(trial.check)(*trial.arguments))
        _VERDICTS[trial.identity] = found  # for this process: it may have been for want of memory
        return found
    record(trial, found)
    return found


def known_problem(trial: Trial) -> str | None:
    """As `problem`; None where it has not been tried yet."""
    name = trial.identity
    if name not in _VERDICTS:
        found = _read(trial)
        if found is None:
            return None
        _VERDICTS[name] = found
    return _VERDICTS[name]


def record(trial: Trial, found: str) -> None:
    """Keeps a verdict, for this process and for later ones."""
    _VERDICTS[trial.identity] = found
    path = _path(trial)
    if path is None:
        return
    text = json.dumps({"tried": trial.name, "depends_on": trial.depends_on, "problem": found}, indent=1)
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        made.write_text(text, encoding="utf-8")
        made.replace(path)  # at once and whole, whoever else writes it at the same time


def try_anew() -> None:
    """From here on this process knows no verdict that it has not found itself."""
    global _reads_disk
    _reads_disk = False
    _VERDICTS.clear()


def tried_here(check: Callable[[], str]) -> str:
    """What a check finds, in this process; the reason is what it raises, where it raises."""
    try:
        return one_line(check())
    except Exception as error:  # whatever a compiler, a driver or a kernel raises
        return reason(error)


def reason(error: BaseException) -> str:
    """An error in one line."""
    said = one_line(str(error))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def one_line(text: str) -> str:
    """A text in one line that is not too long."""
    flat = " ".join(str(text).split())
    return flat if len(flat) <= _MOST_CHARACTERS else flat[: _MOST_CHARACTERS - 1] + "…"


def usable(device: str) -> torch.device:
    """A device by its name, once it has computed; for checks.

    Raises:
        Unavailable: It cannot be used from this process.
    """
    import torch

    there = torch.device(device)
    try:
        right = int((torch.ones(2, device=there, dtype=torch.float32) + 1).sum()) == 4
    except Exception as error:  # held by another process alone, out of memory, of another machine
        raise Unavailable(f"{device} cannot be used there: {reason(error)}") from error
    if not right:
        raise Unavailable(f"{device} adds one and one to something else")
    return there


def digest_of(*paths: Path) -> str:
    """Of the contents of files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:20]


def program(*names: str | None) -> str:
    """The first of some programs that is on the PATH, with what changes when it is replaced; "" for none."""
    for name in filter(None, names):
        if path := shutil.which(name):
            status = os.stat(path)
            return f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}"
    return ""


# -- the verdict on disk ----------------------------------------------------------------------------------------------


def _path(trial: Trial) -> Path | None:
    folder = private_folder()
    return None if folder is None else folder / f"proof-{trial.identity}.json"


def _read(trial: Trial) -> str | None:
    """The verdict as it was kept; None where there is none, or what is there is not one."""
    path = _path(trial) if _reads_disk else None
    try:
        told: Any = json.loads(path.read_text(encoding="utf-8")) if path is not None else None
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or told.get("depends_on") != trial.depends_on:
        return None
    found = told.get("problem")
    return found if isinstance(found, str) and found == one_line(found) else None


# -- a process of its own ---------------------------------------------------------------------------------------------


def _tried_apart(trial: Trial) -> str:
    """What the check finds in a process of its own.

    Raises:
        Unavailable: There can be no such process, or it cannot use the device.
    """
    if not sys.executable:
        raise Unavailable("the Python interpreter is not known")
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "torchrl_gpu.proofs", trial.check, json.dumps(trial.arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,  # its compilers end with it
        )
    except OSError as error:
        raise Unavailable(f"no process of its own: {error}") from error
    try:
        out, err = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"no answer within {LIMIT_S:.0f} seconds"
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL) if hasattr(os, "killpg") else child.kill()
            child.communicate()
    return _verdict(child.returncode, out, err)


def _verdict(status: int, out: str, err: str) -> str:
    """What a trial's process said, or how it ended."""
    last = next((line for line in reversed(out.splitlines()) if line.startswith(_MARK)), None)
    if last is not None and status == 0:
        told = json.loads(last.removeprefix(_MARK))
        if "unavailable" in told:
            raise Unavailable(told["unavailable"])
        return str(told["problem"])
    how = f"ended with status {status}"
    if status < 0:
        with contextlib.suppress(ValueError):
            how = f"died of {signal.Signals(-status).name}"
    said = next((line for line in reversed(err.splitlines()) if line.strip()), "")
    return one_line(f"a trial in a process of its own {how}" + (f": {said}" if said else ""))


def _function(name: str) -> Callable[..., str]:
    module, _, function = name.partition(":")
    found: Callable[..., str] = getattr(importlib.import_module(module), function)
    return found


def _main(check: str, arguments: str) -> None:
    """In the process of its own: tries, and says what it found."""
    try:
        told = {"problem": one_line(_function(check)(*json.loads(arguments)))}
    except Unavailable as error:
        told = {"unavailable": one_line(str(error))}
    except Exception as error:  # whatever a compiler, a driver or a kernel raises
        told = {"problem": reason(error)}
    print(f"\n{_MARK}{json.dumps(told)}", flush=True)
    os._exit(0)  # what a driver does at an orderly end is none of the trial


if __name__ == "__main__":
    from torchrl_gpu import proofs

    proofs._main(*sys.argv[1:])  # of the module that checks import, whose `Unavailable` is another class than here
