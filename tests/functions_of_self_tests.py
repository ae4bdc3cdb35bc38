"""A function for the self-tests of `test_self_tests.py`.

It appends a line to a file, so that calls can be counted.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from torchrl_gpu.system.self_tests import Unavailable


def run(how: str, file: str) -> str:
    """Does what `how` says."""
    with Path(file).open("a") as counted:
        counted.write(f"{os.getpid()}\n")
    if how == "raises":
        raise RuntimeError("no such\narchitecture")
    if how == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "ends":
        print("the driver is too old", file=sys.stderr, flush=True)
        os._exit(3)
    if how == "hangs":
        time.sleep(60)
    if how == "busy":
        raise Unavailable("the device takes one process")
    print("what a compiler says")
    return "" if how == "works" else "wrong numbers"
