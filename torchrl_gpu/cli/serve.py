"""`torchrl-gpu serve`: `play` without anybody at the terminal."""

from __future__ import annotations

from torchrl_gpu.cli.play import run


def main(argv: list[str]) -> None:
    """Take the port that was asked for, or fail where that is not free."""
    run("serve", argv, port_tries=1)
