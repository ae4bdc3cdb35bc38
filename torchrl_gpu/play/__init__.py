"""A policy plays live in the browser: `torchrl-gpu play` and, without anybody at the terminal, `torchrl-gpu serve`."""

from __future__ import annotations


def main(argv: list[str]) -> None:
    """`torchrl-gpu play`: takes the next free port."""
    from torchrl_gpu.play.command import run

    run("play", argv, port_tries=50)


def serve(argv: list[str]) -> None:
    """`torchrl-gpu serve`: takes the port that was asked for, or says that it is not free."""
    from torchrl_gpu.play.command import run

    run("serve", argv, port_tries=1)
