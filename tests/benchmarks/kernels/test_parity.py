"""Every way that is timed agrees with the reference, and one that does not is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.kernels import parity as kernel_parity
from benchmarks.kernels.workloads import Workload, boxes, procedural
from tests.benchmarks.kernels import tiny
from torchrl_gpu.envs.packing import kernels
from torchrl_gpu.envs.packing.kernels import eager

CPU = torch.device("cpu")


def differences(workload: Workload) -> dict[str, str]:
    return {check["row"]: check["difference"] for check in kernel_parity.checks(workload, {"eager": CPU})}


@pytest.mark.parametrize(
    "workload",
    [tiny.workload(2, 2), tiny.workload(1, 1, 25), procedural(1, 1, resolution=20, step=3)],
    ids=["on the grid", "flush with the wall", "mixed"],
)
def test_all_ways_agree(workload: Workload) -> None:
    assert differences(workload) == {"ours eager": "", "NumPy, windows": "", "torch unfold": ""}


def test_boxes_have_no_unfold() -> None:
    assert differences(boxes(3)) == {"ours eager": "", "NumPy, windows": ""}


@pytest.mark.parametrize("wrong", ["z_map", "legal"])
def test_a_wrong_backend_is_found(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_map(*args: Any) -> tuple[Tensor, Tensor]:
        z_map, legal = eager.drop_map(*args)
        return (z_map + 0.01, legal) if wrong == "z_map" else (z_map, ~legal)

    broken = kernels.get_kernels("eager")._replace(drop_map=drop_map)
    monkeypatch.setattr(kernel_parity, "get_kernels", lambda *args: broken)
    found = differences(tiny.workload(1))
    assert found["ours eager"].startswith(f"{wrong} differs in ")
    assert found["NumPy, windows"] == ""


def test_what_is_not_a_number_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = tiny.workload(1)
    z_map, legal = eager.drop_map(*workload)
    broken = kernels.get_kernels("eager")._replace(drop_map=lambda *args: (z_map * torch.nan, legal))
    monkeypatch.setattr(kernel_parity, "get_kernels", lambda *args: broken)
    monkeypatch.setattr(kernel_parity, "unfolded", lambda *args: z_map[:, 0, 0] * torch.nan)
    found = differences(workload)
    assert found["ours eager"].startswith("z_map differs in ")
    assert found["torch unfold"].startswith("z_map differs in orientation 0")
