"""Examples as they are run.

In this process, which has loaded what takes them seconds, or in one of their own.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(name: str, *words: str) -> str:
    """Output of an example for these words of the command line."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return said.getvalue()


def in_fork(name: str, words: Sequence[str], env: dict[str, str]) -> None:
    os.environ.update(env)
    sys.argv = [name, *words]
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def watched(
    name: str, *words: str, streams: Sequence[str], timeout_s: float = 60.0
) -> tuple[str, dict[str, np.ndarray]]:
    """Output of an example that serves streams, and a picture of each, (H, W, 3)."""
    command = [sys.executable, "-u", str(EXAMPLES / name), "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "Watch at" in line:
                break
        found = re.search(r"http://\S+/", said[-1] if said else "")
        assert found, said
        shown = {stream: _picture(f"{found[0]}snapshot.jpg?stream={stream}") for stream in streams}
        said += process.stdout
        assert process.wait(timeout=timeout_s) == 0
    return "".join(said), shown


def _picture(url: str) -> np.ndarray:
    """Fetch a snapshot.

    The first frame of a stream may take longer than one request waits.
    """
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return np.asarray(Image.open(io.BytesIO(answer.read())).convert("RGB"))
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > deadline:
                raise
