"""Rich consoles, status lines and progress bars for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Columns of a table whose output is not a terminal.
_FILE_WIDTH = 150


def wide_console() -> Console:
    """Console as wide as the terminal, or wide enough for a table in a file."""
    console = Console()
    # Rich takes 80 columns where there is no terminal, and cuts long rows.
    return console if console.is_terminal else Console(width=_FILE_WIDTH)


@contextmanager
def progress(title: str) -> Iterator[Callable[[str], None]]:
    """Status line of a title and a text, hidden while the text is empty."""
    status = Console(stderr=True).status(title)

    def say(words: str) -> None:
        status.update(f"{title}: {words}")
        if words:
            status.start()
        else:
            status.stop()

    try:
        yield say
    finally:
        status.stop()


@contextmanager
def progress_bar(title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Progress bar, updated by (done, total), which disappears at the end."""
    columns = TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
