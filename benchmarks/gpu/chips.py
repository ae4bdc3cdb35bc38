"""Published figures of GPUs.

They are limits of a multiprocessor by compute capability, and rates of some devices.

Limits: CUDA Programming Guide, Compute Capabilities, table of technical specifications; rates of instructions: its
table of the throughput of arithmetic instructions. Rates of devices: their data sheets, named beside each.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

# Registers of a multiprocessor of every chip here.
_REGISTERS = 65536
# Registers are given to warps in pieces of so many.
_PER_WARP = 256
# Parts of a multiprocessor, each of which holds whole warps.
_PARTITIONS = 4
_KIB = 1024


class Chip(NamedTuple):
    """Limits of one multiprocessor.

    Attributes:
        name: An architecture.
        max_warps: Resident at once.
        max_blocks: Resident at once.
        shared_kib: Shared memory of all that are resident.
        reserved_kib: Shared memory that the system takes of each block.
    """

    name: str
    max_warps: int
    max_blocks: int
    shared_kib: int
    reserved_kib: int = 1

    def occupancy(self, registers: int, shared_bytes: int, num_warps: int) -> float:
        """Return the share of the warps of a multiprocessor that fit.

        They come in blocks of `num_warps` warps.
        """
        per_warp = math.ceil(registers * 32 / _PER_WARP) * _PER_WARP
        warps = _REGISTERS // _PARTITIONS // per_warp * _PARTITIONS if per_warp else self.max_warps
        blocks = min(self.max_blocks, min(warps, self.max_warps) // num_warps)
        taken = shared_bytes + self.reserved_kib * _KIB
        if taken:
            blocks = min(blocks, self.shared_kib * _KIB // taken)
        return blocks * num_warps / self.max_warps


# By compute capability.
CHIPS = {75: Chip("Turing", 32, 16, 64, 0), 80: Chip("Ampere, A100", 64, 32, 164)}
CHIPS |= {86: Chip("Ampere", 48, 16, 100), 89: Chip("Ada", 48, 24, 100), 90: Chip("Hopper", 64, 32, 228)}
CHIPS |= {100: Chip("Blackwell, B200", 64, 32, 228), 120: Chip("Blackwell", 48, 24, 100)}


class Device(NamedTuple):
    """Published rates of a GPU.

    Attributes:
        name: As it is sold.
        capability: Key of `CHIPS`.
        bandwidth: Bytes of its memory, a second.
        cache_bytes: Of its second level.
        multiprocessors: How many.
        clock: The highest, a second.
        source: Where they are published.
    """

    name: str
    capability: int
    bandwidth: float
    cache_bytes: int
    multiprocessors: int
    clock: float
    source: str

    def operations(self, per_clock: int) -> float:
        """Operations a second of which each multiprocessor does so many a clock."""
        return self.multiprocessors * self.clock * per_clock


_MIB = 1024 * _KIB
_A100 = Device("A100", 80, 2.039e12, 40 * _MIB, 108, 1.41e9, "A100 80 GB SXM data sheet; A100 white paper")
_H100 = Device("H100", 90, 3.35e12, 50 * _MIB, 132, 1.98e9, "H100 SXM data sheet; H100 white paper")
_H200 = Device("H200", 90, 4.8e12, 50 * _MIB, 132, 1.98e9, "H200 SXM data sheet; H100 white paper")
_RTX_4090 = Device("RTX 4090", 89, 1.008e12, 72 * _MIB, 128, 2.52e9, "Ada GPU architecture white paper")
DEVICES = {device.name: device for device in (_A100, _H100, _H200, _RTX_4090)}


def device_named(full_name: str) -> Device | None:
    """Return a device by the name that its driver gives, or None for an unknown one.

    Such a name is "NVIDIA A100-SXM4-80GB".
    """
    words = set(re.split(r"\W+", full_name))
    return next((device for name, device in DEVICES.items() if set(name.split()) <= words), None)


# Comparisons, minima and maxima of a multiprocessor a clock, of numbers of 32 bits or of pairs of 16, on every chip
# here; additions go by another pipe at the same time.
MAXIMA_PER_CLOCK = 64

# Additions and multiplications of float32 of a multiprocessor a clock, each pair one instruction, by capability; those
# of matrices on tensor cores are more.
FLOATS_PER_CLOCK = {75: 64, 80: 64, 86: 128, 89: 128, 90: 128, 100: 128, 120: 128}
