"""Occupancy of multiprocessors, and rates of devices.

Expected values are those of NVIDIA's calculator and of data sheets.
"""

from __future__ import annotations

import pytest

from benchmarks.gpu.chips import CHIPS, DEVICES, MAXIMA_PER_CLOCK


@pytest.mark.parametrize(
    ("capability", "registers", "shared_kib", "num_warps", "expected"),
    [
        # 64 warps of 1,024 registers.
        (80, 32, 0, 4, 1.0),
        # Warps of 1,280 registers: 12 fit a quarter of 16,384.
        (80, 33, 0, 4, 48 / 64),
        # Warps of 6,400 registers: 2 fit a quarter.
        (90, 200, 0, 1, 8 / 64),
        # Warps of 8,192 registers: 2 fit a quarter, too.
        (90, 255, 0, 1, 8 / 64),
        # Warps of 5,376 registers: 3 fit a quarter.
        (90, 168, 0, 1, 12 / 64),
        # At most 32 blocks.
        (90, 16, 0, 1, 32 / 64),
        # 41 KiB each of 164.
        (80, 32, 40, 4, 4 * 4 / 64),
        # Nothing is reserved.
        (75, 32, 32, 4, 2 * 4 / 32),
        # 12 of 12 warps a quarter.
        (120, 40, 0, 4, 1.0),
    ],
)
def test_occupancy(capability: int, registers: int, shared_kib: int, num_warps: int, expected: float) -> None:
    assert CHIPS[capability].occupancy(registers, shared_kib * 1024, num_warps) == expected


@pytest.mark.parametrize(
    ("name", "tera", "per_clock"), [("A100", 19.5, 64), ("H100", 67, 128), ("RTX 4090", 82.6, 128)]
)
def test_clocks_give_the_published_rates(name: str, tera: float, per_clock: int) -> None:
    # A multiply-add is two operations.
    assert 2 * DEVICES[name].operations(per_clock) == pytest.approx(tera * 1e12, rel=0.01)


def test_every_device_is_of_a_chip() -> None:
    assert {device.capability for device in DEVICES.values()} <= CHIPS.keys()
    assert DEVICES["H100"].operations(MAXIMA_PER_CLOCK) == pytest.approx(16.7e12, rel=0.01)
