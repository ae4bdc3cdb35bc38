"""Lines and tables for the terminal, in rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

_FILE_WIDTH = 150  # columns where the output is not a terminal


def wide_console() -> Console:
    """As wide as the terminal, or wide enough for a table where the output is a file."""
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_WIDTH)


@contextmanager
def progress(title: str) -> Iterator[Callable[[str], None]]:
    """A line that says which row is being timed; it goes away."""
    console = Console(stderr=True)
    with console.status(title) as status:
        yield lambda name: status.update(f"{title}: {name}")
