"""Types of what is in results files.

A result, a section and a row of a table are JSON objects whose keys the benchmark decides; pages of the documentation
read them by name (see `tables.py`).
"""

from __future__ import annotations

from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
