"""Tables of published evaluations, with ours in them: `torchrl-gpu evaluate WHAT`."""

from __future__ import annotations

from torchrl_gpu.cli import subcommands

# what: (module:function that takes the rest of the command line, what it evaluates)
WORDS = {
    "packing_irregular": (
        "torchrl_gpu.evaluate.packing_irregular:main",
        "hierarchical packing of irregular objects, method by method (Huang et al., RA-L 2023)",
    ),
}


def main(argv: list[str]) -> None:
    """Runs one evaluation."""
    subcommands.run("torchrl-gpu evaluate", __doc__, WORDS, argv)
