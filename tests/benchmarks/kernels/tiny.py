"""A small irregular workload, and ceilings that take no time."""

from __future__ import annotations

import torch

from benchmarks.kernels.workloads import Workload, pebbles
from torchrl_gpu.bench.ceilings import ADD_MAX, COPY
from torchrl_gpu.bench.timing import TimedRow

SIDE, RESOLUTION, STEP = 6, 26, 4  # 26 − 6 is a multiple of 4: no placement is flush but on the grid


def workload(num_envs: int = 2, num_visible: int = 1, resolution: int = RESOLUTION) -> Workload:
    return pebbles(num_envs, num_visible, side=SIDE, resolution=resolution, step=STEP)


def ceilings(device: torch.device) -> list[TimedRow]:
    return [
        TimedRow(COPY, lambda calls: None, 1000, notes="bytes/s"),
        TimedRow(ADD_MAX, lambda calls: None, 1000, notes="add-max/s"),
    ]
