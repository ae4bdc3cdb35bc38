"""The programs `lightning` and `torchrl-gpu`. Imports nothing heavy."""

from torchrl_gpu.cli.program import main

__all__ = ["main"]
