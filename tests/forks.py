"""Processes that start in a moment.

Each is a fork of one that has imported what takes seconds, and has run nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.conftest import ROOT

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["lightning.pytorch.loggers", "torchrl_gpu.cli.lightning_cli", "tests.training.tiny"])


def start(
    function: Callable[..., Any],
    *args: Any,
    log: Path,
    folder: Path = ROOT,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> ForkServerProcess:
    """Call a function of a module in a process and process group of its own.

    Its result is the exit status.

    What is printed is added to the file `log`; it runs in `folder`, with more variables of the environment.
    """
    process = CONTEXT.Process(target=_called, args=(function, args, log, folder, dict(environment)))
    process.start()
    return process


def run(
    function: Callable[..., Any], *args: Any, log: Path, folder: Path = ROOT, kill_after_s: float | None = None
) -> int:
    """Do as `start`, to the end or until killed.

    Returns the status, which is −9 if the process was killed after the given seconds.
    """
    process = start(function, *args, log=log, folder=folder)
    process.join(300 if kill_after_s is None else kill_after_s)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode is not None
    return process.exitcode


def _called(
    function: Callable[..., Any], args: tuple[Any, ...], log: Path, folder: Path, environment: dict[str, str]
) -> None:
    os.setsid()
    os.environ.update(environment)
    os.chdir(folder)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    sys.exit(function(*args))


def results(
    function: Callable[[Path], dict[str, Any]], paths: list[Path], prepare: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """Return results of a function for each path, as JSON.

    They come from forks of this process, and a fork that dies is replaced.

    Each fork calls `prepare` first. The result of a path at which a fork died, or for which it took longer than half a
    minute, is `{"end": "status N"}`, with N as `os.wait` gives it.
    """
    found: list[dict[str, Any]] = []
    while len(found) < len(paths):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            prepare()
            for path in paths[len(found) :]:
                signal.alarm(30)
                os.write(writer, json.dumps(function(path)).encode() + b"\n")
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            found += map(json.loads, pipe)
        _, status = os.waitpid(child, 0)
        if status:
            found.append({"end": f"status {status}"})
    return found
