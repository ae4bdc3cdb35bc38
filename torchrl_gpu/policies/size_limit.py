"""Bound on a module's size, checked by building it on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Module = TypeVar("Module", bound=nn.Module)

_MOST_OPERATORS = 10_000
_MOST_BYTES_AT_ONCE = 2**30  # of a tensor of a trial pass


def without_memory(make: Callable[[], Module], where: str, most_bytes: int) -> Module:
    """The module that a function makes, on torch's device `meta`: shapes and types without numbers.

    Args:
        make: Makes a module out of plain settings.
        where: Of the message.
        most_bytes: Of all weights and buffers together.

    Raises:
        ValueError: There are more, a trial pass would take more than any network of this package at its usual sizes, or
            there would be more layers than memory for their names.
    """
    with torch.device("meta"), _SizeLimit(where, most_bytes):
        return make()


class _SizeLimit(TorchDispatchMode):
    """Counter of operators, and of bytes of their outputs: new tensors in all, those out of others one by one."""

    def __init__(self, where: str, most_bytes: int) -> None:
        super().__init__()
        self._where, self._most_bytes = where, most_bytes
        self._bytes = self._operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.is_set_to.default:  # of which `meta` knows nothing; TorchRL asks it of its targets
            return False
        out = func(*args, **(kwargs or {}))
        self._operators += 1
        if not any(each.alias_info is not None for each in func._schema.returns):  # no view, nothing in place
            made = [each.numel() * each.element_size() for each in tree_leaves(out) if isinstance(each, Tensor)]
            if not any(isinstance(each, Tensor) for each in tree_leaves(args)):
                self._bytes += sum(made)
            if max(made, default=0) > _MOST_BYTES_AT_ONCE:
                self._refuse(f"tensors of at most {_MOST_BYTES_AT_ONCE:,} bytes")
        if self._bytes > self._most_bytes:
            self._refuse(f"networks of at most {self._most_bytes:,} bytes")
        if self._operators > _MOST_OPERATORS:
            self._refuse(f"networks of at most {_MOST_OPERATORS:,} operators")
        return out

    def _refuse(self, wanted: str) -> NoReturn:
        raise ValueError(f"{self._where}: want {wanted}; got settings of larger ones")
