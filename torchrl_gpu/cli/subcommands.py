"""Subcommands by name, and those that take another: `torchrl-gpu bench WHAT`, `torchrl-gpu evaluate WHAT`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from typing import Any, NoReturn

Subcommands = Mapping[str, tuple[str, str]]
"""name: (module:function that takes the rest of the command line, what it does)."""


class _Once(argparse.Action):
    """Takes an option that may be given once."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, value: Any, option: str | None = None) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"want {option} once; got it twice, {getattr(namespace, self.dest)} and {value}")
        setattr(namespace, self.dest, value)


class OneLineParser(argparse.ArgumentParser):
    """An argument parser for the package's own subcommands, whose complaints are ValueErrors of one line."""

    def add_config(self) -> None:
        """Adds `--config` of a run, which must be given, once."""
        said = "of a run: a path, or one that the package ships"
        self.add_argument("--config", required=True, action=_Once, help=said)

    def error(self, message: str) -> NoReturn:
        """Raises what argparse would print under a usage text."""
        missing = message.partition("arguments are required: ")[2]
        raise ValueError(f"{self.prog}: {f'want {missing}; got none' if missing else message}")


def load(target: str) -> Any:
    """The function at `module:function`."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def run(program: str, does: str | None, subcommands: Subcommands, argv: list[str]) -> Any:
    """Runs the subcommand that `argv` begins with on the rest of it, and gives what it returns."""
    listed = "; ".join(f"{name}: {says}" for name, (_, says) in subcommands.items())
    parser = OneLineParser(prog=program, description=f"{does} {listed}.")
    parser.add_argument("what", choices=subcommands)
    return load(subcommands[parser.parse_args(argv[:1]).what][0])(argv[1:])
