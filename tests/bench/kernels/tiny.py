"""A small irregular workload, and ceilings that take no time."""

from __future__ import annotations

import torch

from torchrl_gpu.bench import machine
from torchrl_gpu.bench.kernels.workloads import Workload, pebbles
from torchrl_gpu.bench.timing import Contestant

SIDE, RESOLUTION, STEP = 6, 26, 4  # 26 − 6 is a multiple of 4: no placement is flush but on the grid


def workload(num_envs: int = 2, num_visible: int = 1, resolution: int = RESOLUTION) -> Workload:
    return pebbles(num_envs, num_visible, side=SIDE, resolution=resolution, step=STEP)


def ceilings(device: torch.device) -> list[Contestant]:
    return [
        Contestant(machine.COPY, lambda calls: None, 1000, notes="bytes/s"),
        Contestant(machine.ADD_MAX, lambda calls: None, 1000, notes="add-max/s"),
    ]
