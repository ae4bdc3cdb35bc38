"""Measurements side by side with others, parity first: `torchrl-gpu bench WHAT`."""

from __future__ import annotations

from torchrl_gpu.cli import subcommands

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
    status: int = subcommands.run("torchrl-gpu bench", __doc__, WORDS, argv)
    return status
