"""Messages between two processes: JSON, a line each, through a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from typing import Any

_MOST_WAITING = 1 << 20


class Speaker:
    """Writes lines and never waits for the reader: what the pipe does not take stays here until the next line.

    Args:
        descriptor: The writing end of a pipe, which becomes its own.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._waiting = bytearray()
        self._lock = threading.Lock()

    def say(self, op: str, *, may_be_lost: bool = False, **fields: Any) -> bool:
        """Sends a message.

        Args:
            op: What it is about.
            may_be_lost: Whether it is left out where the pipe is full: a newer one will come.
            fields: JSON.

        Returns:
            Whether it is under way; not where it was left out, the reader is gone, or a megabyte waits already.
        """
        line = json.dumps({"op": op, **fields}).encode() + b"\n"
        with self._lock:
            if may_be_lost:
                self._flush()
            if self._descriptor is None or len(self._waiting) > (0 if may_be_lost else _MOST_WAITING):
                return False
            self._waiting += line
            self._flush()
            return self._descriptor is not None

    def close(self) -> None:
        """Closes the pipe, which the reader takes as the end."""
        with self._lock:
            if self._descriptor is not None:
                with contextlib.suppress(OSError):
                    os.close(self._descriptor)
                self._descriptor = None

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._waiting and self._descriptor is not None:
                try:
                    del self._waiting[: os.write(self._descriptor, self._waiting)]
                except BrokenPipeError:
                    os.close(self._descriptor)
                    self._descriptor = None


def hear(line: bytes) -> tuple[str, dict[str, Any]]:
    """What a message is about, and its fields."""
    fields = json.loads(line)
    return fields.pop("op"), fields
