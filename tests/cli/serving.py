"""A subcommand that serves until it is stopped.

It runs in a process that starts in a moment.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Self

from tests import forks
from torchrl_gpu import cli


class Serving:
    def __init__(self, words: list[str], log: Path, **environment: str) -> None:
        self.log, self.process = log, forks.start(cli.main, words, "torchrl-gpu", log=log, environment=environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()

    def says(self, pattern: str) -> re.Match[str]:
        """Waits for a line."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            text = self.log.read_text() if self.log.exists() else ""
            found = re.search(f"^{pattern}\n", text, re.MULTILINE)
            if found:
                return found
            assert self.process.is_alive(), self.log.read_text()
            time.sleep(0.01)
        raise AssertionError(self.log.read_text())

    def tell(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def ends(self) -> list[str]:
        self.tell(signal.SIGTERM)
        self.process.join(120)
        assert self.process.exitcode == 0
        return self.log.read_text().splitlines()
