"""What evaluations leave: tables in the terminal, and JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def print_whole(shown: Table) -> None:
    """Prints a table at its own width: rich takes a log for 80 columns and would leave figures out."""
    console = Console()
    width = console.measure(shown, options=console.options.update(max_width=1000)).maximum
    Console(width=max(console.width, width)).print(shown)


def write_json(path: Path, content: Any) -> None:
    """Writes a file whole or not at all; its folder is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".json-new")
    fresh.write_text(json.dumps(content, indent=2) + "\n")
    fresh.replace(path)
