"""A checker of every access that interpreted Triton kernels make.

A GPU would punish a wrong one only sometimes.

`AccessChecker` stands between Triton's interpreter and memory. Each tensor of a launch is given addresses of its own,
so that a pointer is judged by the tensor that it was made from, whatever happens to lie where it points to. Found are:

- accesses outside their tensor, or across its elements;
- two programs of a launch of which one writes what the other reads or writes;
- within a program, an access of what may have been written, or is written over, by another thread with no barrier in
  between. Elements of tensors of one shape belong to the same thread where their index is the same; a value that was
  written is never taken to be seen by the same thread, since the compiler may lay out each access as it likes;
- lanes of one store that write different values to one address.

An access outside is counted and not made. Triton decides at import whether it interprets: only in a process that was
started with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

# Bits of an address below the number of its tensor.
_TAG = 48
_NOBODY, _MANY = -1, -2
# Frames that made no access of their own.
_HERE = (__file__, str(Path(interpreter.__file__).parents[1]))

OUTSIDE = "outside its tensor"
RACE = "another program's"
UNSEEN = "no barrier since another thread's write"
OVERWRITTEN = "no barrier since another thread's access"
DISAGREE = "lanes write different values to one address"


class Fault(NamedTuple):
    """A fault of one access, wherever a kernel makes it again."""

    kind: str
    kernel: str
    argument: str
    access: str
    line: str


@dataclass
class Traffic:
    """Elements of one tensor that a launch accessed.

    It counts all accesses, and different elements.
    """

    item_bytes: int
    loads: int = 0
    stores: int = 0
    loaded: int = 0
    stored: int = 0


@dataclass
class Launch:
    """A launch: its kernel, its number of programs, and its traffic.

    Traffic goes by the argument's name.
    """

    kernel: str
    programs: int = 0
    traffic: dict[str, Traffic] = field(default_factory=dict)

    @property
    def bytes_moved(self) -> int:
        """Return the bytes that go through memory however good the caches are.

        They are what is written and what is only read, each element once.
        """
        return sum(each.item_bytes * (each.stored or each.loaded) for each in self.traffic.values())


class _Memory:
    """Who accessed the elements of one storage last, during one launch."""

    def __init__(self, start: int, num_bytes: int, item_bytes: int) -> None:
        self.start, self.item_bytes = start, item_bytes
        size = -(-num_bytes // item_bytes)
        # Programs that have accessed each element.
        self.reader = np.full(size, _NOBODY)
        self.writer = np.full(size, _NOBODY)
        self.atomic = np.full(size, _NOBODY)
        # Barriers since which an access stands.
        self.read_in = np.zeros(size, np.int64)
        self.written_in = np.zeros(size, np.int64)
        self.read_lane, self.written_lane = np.zeros(size, np.int64), np.zeros(size, np.int64)

    def at(self, address: np.ndarray) -> np.ndarray:
        return (address - self.start) // self.item_bytes


class _Argument:
    """A tensor of a launch: its bounds, and which of its elements were accessed."""

    def __init__(self, name: str, tensor: Tensor, memory: _Memory) -> None:
        self.name = name
        self.memory = memory
        self.item_bytes = tensor.element_size()
        self.start = tensor.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        self.size = last + 1 if tensor.numel() else 0
        self.traffic = Traffic(self.item_bytes)
        self.was_loaded, self.was_stored = np.zeros(self.size, bool), np.zeros(self.size, bool)


class AccessChecker:
    """A context in which the launches of interpreted kernels are checked.

    Their results stay those without it.

    Attributes:
        faults: How many elements were at fault, by `Fault`.
        launches: Those that were checked, in order.
    """

    def __init__(self) -> None:
        self.faults: Counter[Fault] = Counter()
        self.launches: list[Launch] = []
        self._restore: list[tuple[Any, str, Any]] = []
        self._begin("")

    def __enter__(self) -> AccessChecker:
        self._wrap(GridExecutor, "_init_args_hst", self._init_arguments)
        self._wrap(GridExecutor, "_restore_args_dev", self._end)
        self._wrap(interpreter, "_implicit_cvt", self._convert)
        self._wrap(InterpreterBuilder, "set_grid_idx", self._next_program)
        self._wrap(InterpreterBuilder, "create_barrier", self._barrier)
        self._wrap(InterpreterBuilder, "create_masked_load", self._load)
        self._wrap(InterpreterBuilder, "create_masked_store", self._store)
        self._wrap(InterpreterBuilder, "create_atomic_rmw", self._atomic_rmw)
        self._wrap(InterpreterBuilder, "create_atomic_cas", self._atomic_cas)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for owner, name, original in reversed(self._restore):
            setattr(owner, name, original)
        self._restore.clear()

    def describe(self) -> str:
        """Describe every fault on a line of its own, or return ""."""
        return "\n".join(
            f"{fault.line}: {fault.kernel} {fault.access}s {fault.argument}: {fault.kind}, {count} times"
            for fault, count in sorted(self.faults.items())
        )

    def _wrap(self, owner: object, name: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        self._restore.append((owner, name, original))
        setattr(owner, name, lambda *args, **kwargs: wrapper(original, *args, **kwargs))

    # -- launches, programs and barriers -------------------------------------------------------------------------------

    def _begin(self, kernel: str) -> None:
        self._launch = Launch(kernel)
        self._arguments: dict[int, _Argument] = {}
        self._memories: dict[int, _Memory] = {}
        self._names: dict[int, str] = {}
        self._shapes: dict[tuple[int, ...], int] = {}
        self._program, self._epoch = 0, 0

    def _init_arguments(self, original: Callable[..., Any], executor: Any, given: object, named: Any) -> Any:
        arguments, keywords = original(executor, given, named)
        self._begin(executor.fn.__name__)
        for name, value in [*zip(executor.arg_names, arguments, strict=False), *keywords.items()]:
            self._names |= dict(_tensors(name, value))
        return arguments, keywords

    def _convert(self, original: Callable[..., Any], value: Any) -> Any:
        """Make values of arguments as the interpreter does.

        The address of a tensor also holds its number.
        """
        converted = original(value)
        if not isinstance(value, Tensor):
            return converted
        storage = value.untyped_storage()
        start, item_bytes = storage.data_ptr(), value.element_size()
        memory = self._memories.setdefault(start, _Memory(start, storage.nbytes(), item_bytes))
        assert memory.item_bytes == item_bytes, "one storage is given as tensors of elements of different size"
        tag = len(self._arguments) + 1
        self._arguments[tag] = _Argument(self._names.get(id(value), "?"), value, memory)
        converted.handle.data = converted.handle.data + (np.uint64(tag) << np.uint64(_TAG))
        return converted

    def _next_program(self, original: Callable[..., None], *args: object) -> None:
        original(*args)
        self._program += 1
        self._epoch += 1
        self._launch.programs += 1

    def _barrier(self, original: Callable[..., Any], *args: object) -> Any:
        self._epoch += 1
        return original(*args)

    def _end(self, original: Callable[..., None], *args: object) -> None:
        for each in self._arguments.values():
            each.traffic.loaded, each.traffic.stored = int(each.was_loaded.sum()), int(each.was_stored.sum())
            self._launch.traffic[each.name] = each.traffic
        self.launches.append(self._launch)
        self._begin("")
        original(*args)

    # -- accesses ------------------------------------------------------------------------------------------------------

    def _load(
        self, original: Callable[..., Any], builder: Any, ptrs: Any, mask: Any, *rest: object, **named: object
    ) -> Any:
        for argument, index, lane, _ in self._inside("load", ptrs, mask):
            self._read(argument, index, lane)
        return original(builder, _real(ptrs), self._allowed(ptrs, mask), *rest, **named)

    def _store(
        self, original: Callable[..., Any], builder: Any, ptrs: Any, value: Any, mask: Any, *rest: object
    ) -> Any:
        values = np.broadcast_to(value.data, ptrs.data.shape)
        for argument, index, lane, chosen in self._inside("store", ptrs, mask):
            self._write(argument, index, lane, values[chosen])
        return original(builder, _real(ptrs), value, self._allowed(ptrs, mask), *rest)

    def _atomic_rmw(
        self, original: Callable[..., Any], builder: Any, op: Any, ptrs: Any, value: Any, mask: Any, *rest: object
    ) -> Any:
        for argument, index, _, _ in self._inside("atomic", ptrs, mask):
            self._update(argument, index)
        return original(builder, op, _real(ptrs), value, self._allowed(ptrs, mask), *rest)

    def _atomic_cas(self, original: Callable[..., Any], builder: Any, ptrs: Any, *rest: object) -> Any:
        everywhere = type(ptrs)(np.ones(ptrs.data.shape, bool), interpreter.tl.int1)
        for argument, index, _, _ in self._inside("atomic", ptrs, everywhere):
            self._update(argument, index)
        # The interpreter of this access knows no mask.
        assert self._allowed(ptrs, everywhere).data.all(), self.describe()
        return original(builder, _real(ptrs), *rest)

    def _inside(
        self, access: str, ptrs: Any, mask: Any
    ) -> Iterator[tuple[_Argument, np.ndarray, np.ndarray, np.ndarray]]:
        """List what unmasked lanes access inside each argument.

        It gives elements of its storage, lanes, and which those are.
        """
        mask = np.broadcast_to(mask.data, ptrs.data.shape).astype(bool)
        shape = self._shapes.setdefault(ptrs.data.shape, len(self._shapes)) << 40
        tags = ptrs.data >> np.uint64(_TAG)
        for tag in np.unique(tags[mask]).tolist():
            argument, chosen = self._arguments.get(tag), mask & (tags == tag)
            if argument is None:
                self._count(OUTSIDE, "?", access, int(chosen.sum()))
                continue
            chosen = chosen & self._within(argument, ptrs.data)
            if outside := int((mask & (tags == tag)).sum() - chosen.sum()):
                self._count(OUTSIDE, argument.name, access, outside)
            lane = shape + np.flatnonzero(chosen)
            at = (ptrs.data[chosen] & np.uint64((1 << _TAG) - 1)).astype(np.int64)
            own = (at - argument.start) // argument.item_bytes
            if access != "store":
                argument.was_loaded[own] = True
                argument.traffic.loads += len(own)
            if access != "load":
                argument.was_stored[own] = True
                argument.traffic.stores += len(own)
            yield argument, argument.memory.at(at), lane, chosen

    @staticmethod
    def _within(argument: _Argument, data: np.ndarray) -> np.ndarray:
        offset = (data & np.uint64((1 << _TAG) - 1)).astype(np.int64) - argument.start
        return (offset >= 0) & (offset < argument.size * argument.item_bytes) & (offset % argument.item_bytes == 0)

    def _allowed(self, ptrs: Any, mask: Any) -> Any:
        allowed = np.zeros(ptrs.data.shape, bool)
        tags = ptrs.data >> np.uint64(_TAG)
        for tag in np.unique(tags).tolist():
            if tag in self._arguments:
                allowed |= (tags == tag) & self._within(self._arguments[tag], ptrs.data)
        return type(mask)(allowed & np.broadcast_to(mask.data, allowed.shape).astype(bool), mask.dtype)

    def _read(self, argument: _Argument, index: np.ndarray, lane: np.ndarray) -> None:
        m = argument.memory
        self._judge(RACE, argument, "load", self._foreign(m.writer[index]) | self._foreign(m.atomic[index]))
        self._judge(UNSEEN, argument, "load", m.written_in[index] == self._epoch)
        self._join(m.reader, index)
        again = (m.read_in[index] == self._epoch) & (m.read_lane[index] != lane)
        m.read_lane[index] = np.where(again, _MANY, lane)
        # These elements belong to several lanes of this load.
        m.read_lane[index[m.read_lane[index] != lane]] = _MANY
        m.read_in[index] = self._epoch

    def _write(self, argument: _Argument, index: np.ndarray, lane: np.ndarray, values: np.ndarray) -> None:
        m = argument.memory
        foreign = self._foreign(m.writer[index]) | self._foreign(m.reader[index]) | self._foreign(m.atomic[index])
        self._judge(RACE, argument, "store", foreign)
        for since, by in ((m.written_in, m.written_lane), (m.read_in, m.read_lane)):
            another = (since[index] == self._epoch) & (by[index] != lane)
            self._judge(OVERWRITTEN, argument, "store", another & ~foreign)
        first, inverse = np.unique(index, return_index=True, return_inverse=True)[1:]
        different = values.view(f"u{values.itemsize}") != values[first][inverse].view(f"u{values.itemsize}")
        self._judge(DISAGREE, argument, "store", different)
        self._join(m.writer, index)
        m.written_in[index], m.written_lane[index] = self._epoch, lane

    def _update(self, argument: _Argument, index: np.ndarray) -> None:
        m = argument.memory
        foreign = self._foreign(m.writer[index]) | self._foreign(m.reader[index])
        self._judge(RACE, argument, "atomic", foreign)
        self._join(m.atomic, index)

    def _foreign(self, programs: np.ndarray) -> np.ndarray:
        return (programs != _NOBODY) & (programs != self._program)

    def _join(self, programs: np.ndarray, index: np.ndarray) -> None:
        programs[index] = np.where(self._foreign(programs[index]), _MANY, self._program)

    def _judge(self, kind: str, argument: _Argument, access: str, wrong: np.ndarray) -> None:
        if count := int(np.count_nonzero(wrong)):
            self._count(kind, argument.name, access, count)

    def _count(self, kind: str, argument: str, access: str, count: int) -> None:
        self.faults[Fault(kind, self._launch.kernel, argument, access, _line())] += count


def _tensors(name: str, value: Any) -> Iterator[tuple[int, str]]:
    if isinstance(value, Tensor):
        yield id(value), name
    elif isinstance(value, tuple):
        for i, each in enumerate(value):
            yield from _tensors(f"{name}[{i}]", each)
    # A tensor descriptor.
    elif isinstance(getattr(value, "base", None), torch.Tensor):
        yield id(value.base), name


def _real(ptrs: Any) -> Any:
    return type(ptrs)(ptrs.data & np.uint64((1 << _TAG) - 1), ptrs.dtype)


def _line() -> str:
    """The line of a kernel, or of a function in it, that makes the access."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        assert frame.f_back is not None
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
