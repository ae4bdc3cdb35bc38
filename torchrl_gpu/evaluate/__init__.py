"""Tables of published evaluations, with ours in them: `torchrl-gpu evaluate WHAT`."""

from __future__ import annotations

import importlib

from torchrl_gpu.errors import OneLineParser

# what: (module:function that takes the rest of the command line, what it evaluates)
WORDS = {
    "packing_irregular": (
        "torchrl_gpu.evaluate.packing_irregular:main",
        "hierarchical packing of irregular objects, method by method (Huang et al., RA-L 2023)",
    ),
}


def main(argv: list[str]) -> None:
    """Runs one evaluation."""
    listed = "; ".join(f"{word}: {says}" for word, (_, says) in WORDS.items())
    parser = OneLineParser(prog="torchrl-gpu evaluate", description=f"{__doc__} {listed}.")
    parser.add_argument("what", choices=WORDS)
    what = parser.parse_args(argv[:1]).what
    module, _, name = WORDS[what][0].partition(":")
    getattr(importlib.import_module(module), name)(argv[1:])
