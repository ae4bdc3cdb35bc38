"""Times of kernels stand beside their bounds, where there is a model of the chip."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import timings


def model(monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(kernel: str, config: str, device: str) -> tuple[float, str, object]:
        assert config == "packing"
        return {"drop_boxes_kernel": 1e-6}[kernel], f"bytes of {device}", None

    known = SimpleNamespace(CONFIGS=("packing",), DEVICES={"A100": "the A100", "RTX 4090": "the 4090"}, bound=bound)
    monkeypatch.setitem(sys.modules, "benchmarks.gpu.expectations", known)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kernel", "chip", "wanted"),
    [
        ("drop_boxes_kernel", "NVIDIA GeForce RTX 4090", (1e-6, "bytes of the 4090")),
        ("drop_boxes_kernel", "NVIDIA A100 80GB PCIe", (1e-6, "bytes of the A100")),
        ("drop_boxes_kernel", "NVIDIA A1000", None),
        ("another_kernel", "NVIDIA A100 80GB PCIe", None),
    ],
)
def test_a_bound_is_that_of_the_chip(kernel: str, chip: str, wanted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model(monkeypatch)
    assert timings.bound(kernel, "packing", chip) == wanted
    assert timings.bound(kernel, "navigation_iqn", chip) is None


def test_the_chips_of_the_model_are_found_by_the_names_that_drivers_give() -> None:
    for chip in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090"):
        seconds, limit = timings.bound("drop_boxes_kernel", "packing", chip) or (0.0, "")
        assert seconds > 0, chip
        assert limit in ("bytes", "operations")


def test_without_a_model_there_is_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "benchmarks.gpu.expectations", None)  # type: ignore[arg-type]
    assert timings.bound("drop_boxes_kernel", "packing", "NVIDIA A100") is None
