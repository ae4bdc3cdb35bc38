"""Measurements side by side with others, parity first: `torchrl-gpu bench WHAT`."""

from __future__ import annotations

import importlib

from torchrl_gpu.errors import OneLineParser

# what: (module:function that takes the rest of the command line, what it measures)
WORDS = {
    "packing": ("torchrl_gpu.bench.packing:main", "PackingEnv against NumPy and against Jumanji's BinPack"),
    "kernels": (
        "torchrl_gpu.bench.kernels.command:main",
        "z-maps of every backend against the floor that their work implies",
    ),
}


def main(argv: list[str]) -> int:
    """Runs one benchmark; the exit status is 1 where parity fails, and then nothing is timed."""
    listed = "; ".join(f"{word}: {says}" for word, (_, says) in WORDS.items())
    parser = OneLineParser(prog="torchrl-gpu bench", description=f"{__doc__} {listed}.")
    parser.add_argument("what", choices=WORDS)
    what = parser.parse_args(argv[:1]).what
    module, _, name = WORDS[what][0].partition(":")
    status: int = getattr(importlib.import_module(module), name)(argv[1:])
    return status
