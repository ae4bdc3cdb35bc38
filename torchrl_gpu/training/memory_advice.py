"""Advice where an update does not fit into the memory of a device."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torchrl.data import TensorDictReplayBuffer

from torchrl_gpu.envs.memory import free_bytes

# Of what there is: allocators leave gaps.
_SPARE = 0.9

_TRIED = re.compile(r"Tried to allocate ([0-9.]+) (bytes|KiB|MiB|GiB|TiB)")
_UNITS = {"bytes": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_GIB = 2**30


class OutOfMemoryAdvice(torch.OutOfMemoryError):
    """Error of an update that did not fit, with what would have."""


class Memory(NamedTuple):
    """Memory of a device, bytes: available to this process, and taken by it."""

    total: int
    taken: int


def device_memory(device: torch.device) -> Memory | None:
    """Memory of a device that counts it, as CUDA devices do."""
    if device.type != "cuda":
        return None
    taken = torch.cuda.memory_allocated(device)
    free = free_bytes(device)
    return None if free is None else Memory(free + taken, taken)


@contextmanager
def advice(where: str, device: torch.device, batch_size: int, replay: TensorDictReplayBuffer) -> Iterator[None]:
    """Turn an update that does not fit into an `OutOfMemoryAdvice`.

    Where memory is not counted the error stays.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        message = str(error)
        # What the update has made so far is still there.
        failing = device_memory(device)
        if failing is None:
            raise
        # The traceback holds what the update had made.
        error.__traceback__ = None
        gc.collect()
        left = device_memory(device) or failing
        share = replay.storage.max_size, getattr(replay, "num_bytes", 0)
        made = failing.taken - left.taken
        raise OutOfMemoryAdvice(advised(where, device, left, made, message, batch_size, share)) from None


def advised(
    where: str, device: torch.device, memory: Memory, made: int, message: str, batch_size: int, replay: tuple[int, int]
) -> str:
    """Error message with the batch or the replay that would have fitted.

    What an update takes grows with its batch, and is at least what it had made and what it could not have. So what is
    advised is the most that can fit.

    Args:
        where: Beginning of the message.
        device: Where the update ran.
        memory: Of the device, without what the update had made.
        made: Bytes that the update had made.
        message: Torch's, which says what could not be had.
        batch_size: Of the update.
        replay: Its capacity and its bytes.
    """
    capacity, replay_bytes = replay
    tried = _TRIED.search(message)
    more = int(float(tried[1]) * 2 ** _UNITS[tried[2]]) if tried else 0
    needed = made + more
    room = int(memory.total * _SPARE) - memory.taken
    options = []
    batch = batch_size * room // max(1, needed)
    if 0 < batch < batch_size:
        options.append(f"--model.batch_size {batch}")
    left = replay_bytes - (needed - room)
    if 0 < left < replay_bytes:
        fitting = capacity * left // replay_bytes
        if fitting > batch_size:
            options.append(f"--model.replay.init_args.capacity {fitting}")
    what = " or ".join(options) or "fewer environments, smaller frames or a smaller network"
    total = f"{memory.total / _GIB:.1f} GiB of {device}"
    stays = f"{memory.taken / _GIB:.1f} GiB that stay, of which replay has {replay_bytes / _GIB:.1f}"
    return (
        f"{where}: an update of {batch_size} transitions takes {needed / _GIB:.1f} GiB or more of the {total},"
        f" beside {stays}; at most this can fit: {what}"
    )
