"""Times of kernels and the bounds of their chip.

Chips go by the names that drivers give.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gpu import expectations, timings
from benchmarks.gpu.parts import parts


@pytest.mark.parametrize(
    ("chip", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ],
)
def test_a_bound_is_that_of_the_chip(chip: str, device: str) -> None:
    wanted = expectations.bound("drop_boxes_kernel", "packing", expectations.DEVICES[device])
    assert timings.bound("drop_boxes_kernel", "packing", chip) == wanted[:2]


@pytest.mark.parametrize(
    ("kernel", "config", "chip"),
    [
        ("drop_boxes_kernel", "packing", "NVIDIA A1000"),
        ("another_kernel", "packing", "NVIDIA A100-SXM4-80GB"),
        ("drop_boxes_kernel", "navigation_iqn", "NVIDIA A100-SXM4-80GB"),
    ],
)
def test_an_unknown_chip_kernel_or_run_has_no_bound(kernel: str, config: str, chip: str) -> None:
    assert timings.bound(kernel, config, chip) is None


def test_steps_of_the_shipped_runs_on_a_cpu(tmp_path: Path) -> None:
    of_name = [each for each in parts("cpu", True, tmp_path) if each.name == "timings"]
    (part,) = of_name
    _, _, module, *words = part.command
    assert (module, timings.main(words)) == (timings.__name__, 0)
    assert part.output is not None
    rows = json.loads(part.output.read_text())["rows"]
    assert [row["config"] for row in rows] == list(timings.CONFIGS)
    assert all(row["steps_per_s"] > 0 for row in rows)
