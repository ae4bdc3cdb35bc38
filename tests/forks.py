"""Processes that start in a moment: each is a fork of one that has imported what takes seconds, and has run nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["lightning.pytorch.loggers", "torchrl_gpu.cli.lightning_cli", "tests.training.tiny"])


def run(
    function: Callable[..., Any], *args: Any, log: Path, folder: Path = ROOT, kill_after_s: float | None = None
) -> int:
    """Calls a function in a process and process group of its own.

    Args:
        function: Of a module; what it returns is the status of the process, as `sys.exit` takes it.
        args: Of the function.
        log: File to which what is printed is added.
        folder: In which it runs.
        kill_after_s: Seconds after which it is killed, with SIGKILL; None lets it end.

    Returns:
        Its status, as `subprocess` gives it: −9 where it was killed.
    """
    process = CONTEXT.Process(target=_called, args=(function, args, log, folder))
    process.start()
    process.join(300 if kill_after_s is None else kill_after_s)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode is not None
    return process.exitcode


def _called(function: Callable[..., Any], args: tuple[Any, ...], log: Path, folder: Path) -> None:
    os.setsid()
    os.chdir(folder)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    sys.exit(function(*args))


def results(
    function: Callable[[Path], dict[str, Any]], paths: list[Path], prepare: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """Results of a function for each path, as JSON, from forks of this process: one that dies is followed by another.

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
