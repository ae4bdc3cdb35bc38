"""Memory use of environments, free memory, and placement of stores of frames and transitions."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchrl_gpu.envs.base import BatchedEnv

_LOG = logging.getLogger(__name__)
Held = TypeVar("Held", Tensor, TensorDictBase)

SHARE = 0.8
"""Of the free memory, what stores of frames and transitions may take; what learns from them needs the rest."""

Placement = Literal["auto", "device", "host"]
"""Where a store is kept; "auto" is the device where it fits, else the host."""

MOST_TIMES_LEAST = 8  # a step takes up to five times what is always taken
_MOST_UNMEASURED = 8  # environments: fewer are too few to measure how much one takes
_MEMINFO = Path("/proc/meminfo")
_FEW, _MORE, _STEPS = 2, 4, 2  # the second step is made while the first is still held


class LiveBytes(TorchDispatchMode):
    """Dispatch mode that counts the bytes of live tensors made under it: what a device would hold, on any device.

    What a kernel allocates and frees inside itself is not seen, nor is an allocator's rounding. `live` are the bytes
    now, `peak` the most after any operator since the mode was entered, or since `restart_peak`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}  # bytes of each storage, by the address of its object

    def restart_peak(self) -> None:
        self.peak = self.live

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = {each.untyped_storage()._cdata for each in given}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf, known)
        self.peak = max(self.peak, self.live)
        return out

    def _count(self, tensor: Tensor, known: set[int]) -> None:
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if address in self._sizes:  # an `out` may have grown
            self.live += size - self._sizes[address]
            self._sizes[address] = size
        elif address not in known:  # else made before the mode was entered
            self.live += size
            self._sizes[address] = size
            weakref.finalize(storage, self._forget, address)

    def _forget(self, address: int) -> None:
        self.live -= self._sizes.pop(address)


def measure_bytes_per_env(make: Callable[[int], BatchedEnv], act: Callable[[TensorDictBase], Tensor]) -> int:
    """Peak bytes of one environment during `step, current = env.step_and_maybe_reset(current)`, by `LiveBytes`.

    Counted is the growth from a few environments, which `make` makes, to a few more, so that what any number shares is
    left out. So is the action, which `act` returns for their observations.
    """
    return max(1, -(-(_peak(make, _MORE, act) - _peak(make, _FEW, act)) // (_MORE - _FEW)))


@torch.no_grad()
def _peak(make: Callable[[int], BatchedEnv], num_envs: int, act: Callable[[TensorDictBase], Tensor]) -> int:
    gc.freeze()  # the collection below is to look at what is made here, not at all that the process holds
    try:
        with LiveBytes() as counter:
            env = make(num_envs)
            step, current, peak = None, env.reset(), 0
            gc.collect()  # what TorchRL leaves in cycles while it is built
            for _ in range(_STEPS):
                current["action"] = act(current)
                counter.restart_peak()
                step = env.step(current)
                shown = env._step_mdp(step)
                # A reset takes the most.
                current = env.maybe_reset(shown.set("done", torch.ones_like(shown["done"])))
                peak = max(peak, counter.peak)
        del step  # held until here, as a caller that keeps the last step holds it
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
    """Raises ValueError, with the number that would fit, where there is not memory enough for all environments.

    Each takes `least` bytes or more, or as many as `measure` returns, which is called only where that may decide.
    """
    budget = free_bytes(device)
    if budget is None:
        return
    may_decide = num_envs > _MOST_UNMEASURED and num_envs * least <= budget < MOST_TIMES_LEAST * num_envs * least
    per_env = measure() if measure is not None and may_decide else least
    if num_envs * per_env > budget:
        raise ValueError(
            f"{where}: want at most {budget // per_env:,} environments on {device}"
            f" ({_readable(budget)} free, {_readable(per_env)} each); got {num_envs:,}"
        )


def free_bytes(device: torch.device) -> int | None:
    """Free memory for tensors on a device, bytes; None where it is not known.

    On CUDA the driver's free memory counts and what torch's allocator holds unused; on a CPU the memory that the
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
    """Device of a store of `needed` bytes: by "auto" the one that reads it, or, logged, the host.

    That is where it takes more than `SHARE` of the device's free memory. `where` and `what` name the owner and what is
    stored, in the plural, such as "frames".
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
    """Copies tensors from host memory to a device, without waiting for it where memory can be pinned.

    Where it cannot, the plain copy does the same, more slowly; that is logged once, with the owner `where` and the
    name of `what` is copied, such as "clips".
    """

    def __init__(self, where: str, what: str, device: torch.device) -> None:
        self.device, self._warning = device, f"{where}: {what} are copied from pageable memory, as pinning failed"
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
    """Text of a number of bytes with a unit: 512 B, 46.5 KiB, 35.2 GiB."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"
