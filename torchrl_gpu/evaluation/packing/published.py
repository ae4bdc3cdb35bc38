"""Results of published policies on the protocols of bin packing."""

from __future__ import annotations

PUBLISHED: dict[tuple[str, int], tuple[tuple[str, float, str], ...]] = {
    ("rs", 1): (("AAAI 2021, policy", 50.5, "nothing"), ("arXiv 2208.07123, 100 sequences", 53.1, "nothing")),
    ("rs", 3): (("arXiv 2208.07123, 100 sequences", 62.1, "3 visible"),),
    ("cut1", 1): (("AAAI 2021, policy", 73.4, "nothing"), ("arXiv 2208.07123, 100 sequences", 83.4, "nothing")),
    ("cut2", 1): (("AAAI 2021, policy", 66.9, "nothing"), ("arXiv 2208.07123, 100 sequences", 69.9, "nothing")),
    ("cut2", 2): (("arXiv 2208.07123, 100 sequences", 71.5, "2 visible"),),
    ("cut2", 3): (("arXiv 2208.07123, 100 sequences", 77.1, "3 visible"),),
    ("discrete125", 1): (
        ("GOPT, RA-L 2024, online BPH", 51.6, "nothing"),
        ("GOPT, RA-L 2024, heightmap minimisation", 56.5, "nothing"),
        ("PCT, ICLR 2022, as trained by GOPT", 72.7, "nothing"),
        ("GOPT, RA-L 2024", 76.1, "nothing"),
    ),
    ("free125", 1): (("PCT, ICLR 2022", 86.0, "nothing"),),
    ("free125", 5): (("PCT, IJRR 2025, second-hand", 88.3, "5 visible"),),
    ("free125", 10): (("PCT, IJRR 2025, second-hand", 93.5, "10 visible"),),
}
"""Utilization in per cent of published policies on sequences of their own, and what they knew; by protocol and by how
many boxes they could choose from (arXiv 2208.07123 and PCT's version of 2025 call that a buffer)."""
