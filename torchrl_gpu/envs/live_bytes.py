"""A mode that counts the bytes of the tensors alive under it: what a device would hold, on any device."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the storages of tensors that operators make while the mode is on, until the storages are freed.

    What a kernel allocates and frees inside itself is not seen, nor is an allocator's rounding.

    Attributes:
        live: Bytes alive now.
        peak: Most bytes alive after any operator since the mode was entered, or since `restart_peak`.
        peak_operator: The operator after which they were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.peak_operator = ""
        self._sizes: dict[int, int] = {}  # bytes of each storage, by the address of its object

    def restart_peak(self) -> None:
        """From now on `peak` is that of what follows."""
        self.peak, self.peak_operator = self.live, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {_storage_id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf, known)
        if self.live > self.peak:
            self.peak, self.peak_operator = self.live, str(func)
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


def _storage_id(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
