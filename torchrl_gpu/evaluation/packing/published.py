"""What published policies reach on the protocols of bin packing."""

from __future__ import annotations

PUBLISHED: dict[str, tuple[tuple[str, float, str], ...]] = {
    "rs": (("AAAI 2021, policy", 50.5, "nothing"), ("arXiv 2208.07123, 100 sequences", 53.1, "nothing")),
    "cut1": (("AAAI 2021, policy", 73.4, "nothing"), ("arXiv 2208.07123, 100 sequences", 83.4, "nothing")),
    "cut2": (("AAAI 2021, policy", 66.9, "nothing"), ("arXiv 2208.07123, 100 sequences", 69.9, "nothing")),
    "discrete125": (
        ("GOPT, RA-L 2024, online BPH", 51.6, "nothing"),
        ("GOPT, RA-L 2024, heightmap minimisation", 56.5, "nothing"),
        ("PCT, ICLR 2022, as trained by GOPT", 72.7, "nothing"),
        ("GOPT, RA-L 2024", 76.1, "nothing"),
    ),
    "free125": (("PCT, ICLR 2022", 86.0, "nothing"),),
}
"""Utilization in per cent of published policies on sequences of their own, one visible item, and what they knew."""
