"""A CUDA graph of operators on CPU tensors.

A replay runs the same operators on the same memory again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.pretend.harness import launches, waits

recording: CudaGraph | None = None
"""The graph that is being captured."""


class _Recorded(NamedTuple):
    run: Callable[[Any, Any], Any]
    args: Any
    kwargs: Any
    # Places among the results of what the operator allocates, and that memory.
    written: list[tuple[int, Tensor]]


class CudaGraph:
    """Stands in for `torch.cuda.CUDAGraph`.

    Attributes:
        operators: Of the capture, in their order, with the numbers and shapes that they were given.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self._recorded: list[_Recorded] = []
        # Storages.
        self._made: set[int] = set()
        # Aliases of each storage that the graph itself keeps.
        self._held: Counter[int] = Counter()
        # Of each storage one alias, and who reads it.
        self._readers: dict[int, tuple[Tensor, str]] = {}
        # Contents of the storages that the capture has written into.
        self._before: dict[int, tuple[Tensor, Any]] = {}
        self.operators: list[str] = []

    @property
    def nodes(self) -> int:
        """Operators recorded so far, views left out."""
        return len(self._recorded)

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        global recording
        if recording is not None:
            raise RuntimeError("CUDA error: a graph is being captured already")
        recording, waits.capturing = self, True
        self._generator = torch.cuda.get_rng_state()

    def capture_end(self) -> None:
        """End the capture.

        Nothing has been done, and what the operators gave holds no numbers yet.
        """
        global recording
        recording, waits.capturing = None, False
        torch.cuda.set_rng_state(self._generator)
        with torch.no_grad(), _disable_current_modes():
            for alias, numbers in self._before.values():
                alias.untyped_storage().copy_(numbers)
            for each in self._recorded:
                for _, memory in each.written:
                    memory.fill_(float("nan") if memory.dtype.is_floating_point else 1)
        self._before = {}

    def writes(self, tensors: Any) -> None:
        """Remember what memory held, before an operator writes into it."""
        for tensor in tree_leaves(tensors):
            if not isinstance(tensor, Tensor):
                continue
            storage = _storage(tensor)
            if storage not in self._made and storage not in self._before:
                self._before[storage] = tensor.detach(), tensor.untyped_storage().clone()

    def add(self, run: Callable[[Any, Any], Any], func: OpOverload, args: Any, kwargs: Any, out: Any) -> None:
        """Record an operator on CPU tensors, with its results."""
        read = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        results = tree_leaves(out)
        fresh = [
            (place, leaf)
            for place, leaf in enumerate(results)
            if isinstance(leaf, Tensor) and _storage(leaf) not in read
        ]
        self.operators.append(f"{func} {tree_map_only(Tensor, _shape, (args, kwargs))}")
        if not fresh and not launches.schema_of(func).is_mutable:
            # It is a view.
            return
        self._made |= {_storage(leaf) for _, leaf in fresh}
        args, kwargs = tree_map_only(Tensor, lambda tensor: self._keep(tensor, str(func)), (args, kwargs))
        written = [(place, self._keep(leaf, str(func))) for place, leaf in fresh]
        self._recorded.append(_Recorded(run, args, kwargs, written))

    def _keep(self, tensor: Tensor, name: str) -> Tensor:
        alias = tensor.detach()
        storage = _storage(alias)
        self._held[storage] += 1
        self._readers.setdefault(storage, (alias, f"{name} reads {_shape(tensor)}"))
        return alias

    @torch.no_grad()
    def replay(self) -> None:
        """Run all operators again, on the memory that they had.

        Raises:
            RuntimeError: Memory that was there before the capture is held by nobody else any more.
        """
        for address, (alias, reader) in self._readers.items():
            # Its Python object counts as one.
            storage = alias.untyped_storage()
            if address not in self._made and torch._C._storage_Use_Count(address) <= self._held[address] + 1:
                raise RuntimeError(f"CUDA error: an illegal memory access: {reader}, freed since the capture")
            del storage
        launches.note_replay(len(self._recorded))
        # A replay passes no dispatcher.
        with _disable_current_modes():
            for each in self._recorded:
                results = tree_leaves(each.run(each.args, each.kwargs))
                for place, memory in each.written:
                    memory.copy_(results[place])

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]

    def pool(self) -> tuple[int, int]:
        return (0, 0)

    def register_generator_state(self, generator: object) -> None: ...

    def instantiate(self) -> None: ...


# Its name is that of `torch.cuda.graph`.
class capture:
    """Stands in for `torch.cuda.graph`: captures what is done inside."""

    def __init__(
        self, cuda_graph: CudaGraph, pool: object = None, stream: object = None, capture_error_mode: str = "global"
    ):
        self.graph, self.streams = cuda_graph, torch.cuda.stream(stream or torch.cuda.Stream())

    def __enter__(self) -> None:
        torch.cuda.synchronize()
        self.streams.__enter__()
        self.graph.capture_begin()

    def __exit__(self, *raised: object) -> None:
        self.graph.capture_end()
        self.streams.__exit__(*raised)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
