"""Standard output that takes every character, also where there is none."""

from __future__ import annotations

import os
import sys


def prepare_output() -> None:
    """Keeps printing from ending a run.

    A character that the terminal's encoding lacks is shown as "?". What is printed goes nowhere if the standard output
    or the error output is closed, as services have it: a file that is opened later would get its number otherwise, and
    what libraries print would be written into that file.
    """
    _occupy_closed_descriptors()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8", errors="replace"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _occupy_closed_descriptors() -> None:
    opened = os.open(os.devnull, os.O_RDWR)
    while opened <= 2:
        opened = os.open(os.devnull, os.O_RDWR)
    os.close(opened)
