"""Advice after a device has run out of memory: the batch or the replay that would have fitted."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torchrl.data import TensorDictReplayBuffer

from torchrl_gpu.envs.memory import free_bytes

_SPARE = 0.9  # of what there is: allocators leave gaps
_TRIED = re.compile(r"Tried to allocate ([0-9.]+) (bytes|KiB|MiB|GiB|TiB)")
_UNITS = {"bytes": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}


class OutOfMemoryAdvice(torch.OutOfMemoryError):
    """Error of an update that did not fit, with the batch or the replay that would have."""


class Memory(NamedTuple):
    """Memory of a device, bytes: available to this process, and taken by it."""

    total: int
    taken: int


def device_memory(device: torch.device) -> Memory | None:
    """Memory of a device; None on one that does not count it."""
    if device.type != "cuda":
        return None
    taken, free = torch.cuda.memory_allocated(device), free_bytes(device)
    return None if free is None else Memory(free + taken, taken)


@contextmanager
def advice(where: str, device: torch.device, batch_size: int, replay: TensorDictReplayBuffer) -> Iterator[None]:
    """Context manager that turns an update that does not fit into an `OutOfMemoryAdvice`, where memory is counted."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        message, failing = str(error), device_memory(device)  # what the update has made so far is there yet
        if failing is None:
            raise
        error.__traceback__ = None  # it holds what the update had made
        gc.collect()
        left = device_memory(device) or failing
        share = replay.storage.max_size, getattr(replay, "num_bytes", 0)
        made = failing.taken - left.taken
        raise OutOfMemoryAdvice(advised(where, device, left, made, message, batch_size, share)) from None


def advised(
    where: str, device: torch.device, memory: Memory, made: int, message: str, batch_size: int, replay: tuple[int, int]
) -> str:
    """Error message with the batch or the replay that would have fitted.

    What an update takes grows with its batch and is known to be at least what it had made and could not have, so that
    what is advised is the most that can fit.
    """
    capacity, replay_bytes = replay
    tried = _TRIED.search(message)
    more = int(float(tried[1]) * 2 ** _UNITS[tried[2]]) if tried else 0
    needed, room = made + more, int(memory.total * _SPARE) - memory.taken
    lines = []
    if 0 < (batch := batch_size * room // max(1, needed)) < batch_size:
        lines.append(f"--model.batch_size {batch}")
    left = replay_bytes - (needed - room)
    if 0 < left < replay_bytes and (fitting := capacity * left // replay_bytes) > batch_size:
        lines.append(f"--model.replay.init_args.capacity {fitting}")
    what = " or ".join(lines) or "fewer environments, smaller frames or a smaller network"
    return (
        f"{where}: want an update that fits into {memory.total / 2**30:.1f} GiB of {device}; got one of {batch_size}"
        f" transitions that takes {needed / 2**30:.1f} GiB or more, beside {memory.taken / 2**30:.1f} GiB that stay, of"
        f" which replay has {replay_bytes / 2**30:.1f}; at most this can fit: {what}"
    )
