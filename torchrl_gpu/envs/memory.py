"""Memory: how much environments take, how much is free, and where stores are kept.

A store holds frames or transitions.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchrl_gpu.envs.base import BatchedEnv

_LOG = logging.getLogger(__name__)
Held = TypeVar("Held", Tensor, TensorDictBase)

SHARE = 0.8
"""Share of the free memory that stores of frames and transitions may take.

Whatever learns from them needs the rest.
"""

Placement = Literal["auto", "device", "host"]
"""Where a store is kept; "auto" is the device if it fits there, otherwise the host."""

# A step takes up to five times what an environment always holds. Beyond this factor, measuring cannot change the
# answer.
MOST_TIMES_LEAST = 8

# Environments too few to measure how much one takes.
_MOST_UNMEASURED = 8

_MEMINFO = Path("/proc/meminfo")

# Numbers of environments whose peaks are compared. Two steps are made, since the second runs while the result of the
# first is still held.
_FEW = 2
_MORE = 4
_STEPS = 2


class LiveBytes(TorchDispatchMode):
    """Dispatch mode that counts the bytes of the live tensors made under it.

    That is what a device would hold, on any device: an allocator's statistics exist for CUDA alone. Memory that a
    kernel allocates and frees inside itself is not seen, nor is an allocator's rounding.

    Attributes:
        live: Bytes now.
        peak: Most bytes after any operator since the mode was entered, or since `restart_peak`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        # Bytes of each storage, by the address of its C++ object.
        self._sizes: dict[int, int] = {}

    def restart_peak(self) -> None:
        """Forget the peak so far."""
        self.peak = self.live

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        inputs = tree_leaves((args, kwargs))
        given = [leaf for leaf in inputs if isinstance(leaf, Tensor)]
        # Storages of inputs that are not in `_sizes` were made before the mode was entered, and do not count.
        known = {each.untyped_storage()._cdata for each in given}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf, known)
        self.peak = max(self.peak, self.live)
        return out

    def _count(self, tensor: Tensor, known: set[int]) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        size = storage.nbytes()
        if address in self._sizes:
            # An operator may have enlarged its `out`.
            self.live += size - self._sizes[address]
            self._sizes[address] = size
        elif address not in known:
            self.live += size
            self._sizes[address] = size
            weakref.finalize(storage, self._forget, address)

    def _forget(self, address: int) -> None:
        self.live -= self._sizes.pop(address)


def measure_bytes_per_env(make: Callable[[int], BatchedEnv], act: Callable[[TensorDictBase], Tensor]) -> int:
    """Return the peak bytes of one environment during a step with a reset.

    `LiveBytes` counts them. That is the growth from a few environments, which `make` makes, to a few more, so that what
    any number of them shares does not count. Nor does the action, which `act` returns for their observations.
    """
    growth = _peak(make, _MORE, act) - _peak(make, _FEW, act)
    per_env = -(-growth // (_MORE - _FEW))
    return max(1, per_env)


@torch.no_grad()
def _peak(make: Callable[[int], BatchedEnv], num_envs: int, act: Callable[[TensorDictBase], Tensor]) -> int:
    # The collection below should visit what is made here, not all objects of the process.
    gc.freeze()
    try:
        with LiveBytes() as counter:
            env = make(num_envs)
            # `step` stays alive until the end, as with a caller that keeps its last step.
            step = None
            current = env.reset()
            peak = 0
            # Constructors of TorchRL leave tensors in reference cycles.
            gc.collect()
            for _ in range(_STEPS):
                current["action"] = act(current)
                counter.restart_peak()
                step = env.step(current)
                observed = env._step_mdp(step)
                # A reset takes the most.
                current = env.maybe_reset(observed.set("done", torch.ones_like(observed["done"])))
                peak = max(peak, counter.peak)
        del step
        return peak
    finally:
        gc.unfreeze()


def check_fits(
    num_envs: int,
    least: int,
    device: torch.device,
    *,
    measure: Callable[[], int] | None = None,
    where: str = "PackingEnv",
) -> None:
    """Check that there is enough memory for all environments.

    Args:
        num_envs: N.
        least: Bytes that an environment takes, or more.
        device: Where they are to be.
        measure: Returns the bytes that one takes. It is slow, and only called if its answer may decide.
        where: Beginning of the error message.

    Raises:
        ValueError: There is not; the message says how many would fit.
    """
    budget = free_bytes(device)
    if budget is None:
        return
    may_decide = num_envs > _MOST_UNMEASURED and num_envs * least <= budget < MOST_TIMES_LEAST * num_envs * least
    per_env = measure() if measure is not None and may_decide else least
    if num_envs * per_env > budget:
        raise ValueError(
            f"{where}: num_envs must be at most {budget // per_env:,} on {device}"
            f" ({_readable(budget)} free, {_readable(per_env)} each), not {num_envs:,}"
        )


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device, bytes, or None if it is not known.

    On CUDA that is the driver's free memory and what torch's allocator holds unused; on a CPU the memory that the
    system reports as available without swapping.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    if device.type != "cpu" or not _MEMINFO.is_file():
        return None
    for line in _MEMINFO.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return 1024 * int(amount.split()[0])
    return None


def place(where: str, what: str, needed: int, device: torch.device, wanted: Placement = "auto") -> torch.device:
    """Choose the device of a store.

    With "auto" that is the device which reads it, or the host if it would take more than `SHARE` of that device's free
    memory. That is logged.

    Args:
        where: Owner of the store, for messages.
        what: What it stores, in the plural, such as "frames".
        needed: Its bytes.
        device: The device which reads it.
        wanted: Where it is to be kept.
    """
    host = torch.device("cpu")
    if wanted != "auto" or device.type == "cpu":
        return host if wanted == "host" else device
    free = free_bytes(device)
    if free is None or needed <= SHARE * free:
        return device
    sizes = f"{_readable(needed)} and {device} has {_readable(free)} free"
    _LOG.warning("%s: its %s take %s: they are kept in host memory and staged", where, what, sizes)
    return host


class Staging:
    """Copy of tensors from host memory to a device, which does not wait.

    Not to wait takes pinned memory. If pinning fails, the plain copy does the same, more slowly. It is logged once,
    with the owner `where` and the name of `what` is copied, such as "clips".
    """

    def __init__(self, where: str, what: str, device: torch.device) -> None:
        self.device = device
        self._warning = f"{where}: {what} are copied from pageable memory, as pinning failed"
        self._pins = device.type == "cuda"

    def __call__(self, held: Held) -> Held:
        if self._pins:
            try:
                held = held.pin_memory()
            except RuntimeError as error:
                self._pins = False
                _LOG.warning("%s: %s", self._warning, error)
        return held.to(self.device, non_blocking=self._pins)


def _readable(size: int) -> str:
    """Write a number of bytes with a unit: 512 B, 46.5 KiB, 35.2 GiB."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"
