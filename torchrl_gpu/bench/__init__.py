"""Throughput of this machine beside its ceilings, parity first: `torchrl-gpu bench WHAT`."""

from __future__ import annotations

from torchrl_gpu.cli import subcommands

SUBCOMMANDS = {
    "packing": ("torchrl_gpu.bench.packing:main", "PackingEnv beside the NumPy reference and the memory's ceiling"),
}


def main(argv: list[str]) -> int:
    """Runs one benchmark; the exit status is 1 where parity fails, and then nothing is timed."""
    status: int = subcommands.run("torchrl-gpu bench", __doc__, SUBCOMMANDS, argv)
    return status
