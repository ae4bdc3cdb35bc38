"""A word of the command line that takes another: `torchrl-gpu bench WHAT`, `torchrl-gpu evaluate WHAT`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from torchrl_gpu.errors import OneLineParser

Words = Mapping[str, tuple[str, str]]
"""what: (module:function that takes the rest of the command line, what it does)."""


def run(program: str, does: str | None, words: Words, argv: list[str]) -> Any:
    """Runs the word that `argv` begins with on the rest of it, and gives what it returns."""
    listed = "; ".join(f"{word}: {says}" for word, (_, says) in words.items())
    parser = OneLineParser(prog=program, description=f"{does} {listed}.")
    parser.add_argument("what", choices=words)
    what = parser.parse_args(argv[:1]).what
    module, _, name = words[what][0].partition(":")
    return getattr(importlib.import_module(module), name)(argv[1:])
