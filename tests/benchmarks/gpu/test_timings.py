"""Times of kernels stand beside their bounds, where there is a model of the chip."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import timings


def model(monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(kernel: str, config: str, device: str) -> tuple[float, str, object]:
        return {"drop_boxes_kernel": 1e-6}[kernel], f"bytes of {device}", None

    known = SimpleNamespace(DEVICES={"A100": "the A100", "RTX 4090": "the 4090"}, bound=bound)
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


def test_without_a_model_there_is_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "benchmarks.gpu.expectations", None)  # type: ignore[arg-type]
    assert timings.bound("drop_boxes_kernel", "packing", "NVIDIA A100") is None
