"""Reports of evaluations: tables in the terminal, and JSON files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TypeVar, cast

from rich.console import Console
from rich.table import Table

PlainData = dict[str, object]
"""Plain data for JSON, by name: numbers, text, lists and dicts of them."""

Content = TypeVar("Content")


def print_whole(shown: Table) -> None:
    """Print a table at its own width.

    Rich assumes that a log file has 80 columns, and would leave figures out.
    """
    console = Console()
    width = console.measure(shown, options=console.options.update(max_width=1000)).maximum
    Console(width=max(console.width, width)).print(shown)


def without_noise(content: Content) -> Content:
    """Round the floats of plain data to six digits, which float32 surely holds.

    Floats that are whole become integers. Else the last digits of a file would differ from machine to machine.
    """
    return cast("Content", _round_floats(content))


def _round_floats(content: object) -> object:
    if isinstance(content, dict):
        return {key: _round_floats(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_round_floats(value) for value in content]
    if not isinstance(content, float) or not math.isfinite(content):
        return content
    short = float(f"{content:.6g}")
    return int(short) if short.is_integer() else short


def write_json(path: Path, content: object) -> None:
    """Write a file whole or not at all, and its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A reader, or a crash while writing, never meets half a file.
    fresh = path.with_suffix(".json-new")
    fresh.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)
