"""Meanings of observations and actions at the sink, for export manifests."""

from __future__ import annotations

from torchrl_gpu.policies.export.meanings import Meaning, Meanings

_SINK = ("stack", "fatigue", "wear", "demand", "clock", "broken")

MEANINGS = Meanings(
    {
        "observation": Meaning("the shift, each number a share from 0 to 1", None, None, _SINK),
        "clip": Meaning(
            "the last pictures of the sink, oldest first, RGB; the first repeats at first", "levels of 0 to 255"
        ),
        "action": Meaning("how fast to wash, and how carefully", "share of the most", None, ("speed", "care")),
    }
)
