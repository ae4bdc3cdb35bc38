"""Reports of evaluations: tables in the terminal, and JSON files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def print_whole(shown: Table) -> None:
    """Print a table at its own width.

    Rich takes a log for 80 columns and would leave figures out.
    """
    console = Console()
    width = console.measure(shown, options=console.options.update(max_width=1000)).maximum
    Console(width=max(console.width, width)).print(shown)


def without_noise(content: Any) -> Any:
    """Plain data with floats of six digits, which float32 surely holds.

    Floats that are whole become integers.
    """
    if isinstance(content, dict):
        return {key: without_noise(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [without_noise(value) for value in content]
    if not isinstance(content, float) or not math.isfinite(content):
        return content
    short = float(f"{content:.6g}")
    return int(short) if short.is_integer() else short


def write_json(path: Path, content: object) -> None:
    """Write a file whole or not at all, and its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".json-new")
    fresh.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)
