"""Small C++ operators over CPU tensors.

Each is defined by a torch form beside its caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import Structure, c_float, c_int64, c_void_p
from math import prod
from typing import Any, Self

import torch
from torch import Tensor

from torchrl_gpu.native.build import library, problem
from torchrl_gpu.system.arguments import tensor
from torchrl_gpu.system.threads import kernel_threads
from torchrl_gpu.system.tracing import is_traced

_CPU = torch.device("cpu")


def runs_on(tensor: Tensor) -> bool:
    """Return whether these operators take a tensor.

    They do on a CPU with a compiler, and not while torch.compile traces.
    """
    return tensor.device.type == "cpu" and not is_traced() and not problem()


def output(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised output tensor for C++.

    It is contiguous, on the CPU and of this dtype, regardless of torch's defaults.
    """
    return torch.empty(shape, dtype=dtype, device=_CPU)


def of_type(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Return fields of a struct that have one type, by their names in order."""
    return [(name, kind) for name in names.split()]


class Arguments(Structure):
    """A ctypes mirror of a struct of the C++ headers, filled by names of fields.

    The fields must keep the order of the struct.
    """

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor | None], **numbers: float | tuple[float, ...]) -> Self:
        """Fill in numbers, and pointers to tensors.

        The tensors live as long as the arguments. The pointer of None is null.
        """
        held = {name: None if each is None else each.contiguous() for name, each in tensors.items()}
        made = cls(**numbers, **{name: each.data_ptr() for name, each in held.items() if each is not None})
        made.tensors = held
        return made


def draw_bits(key: Tensor, counter: Tensor) -> Tensor:
    """As `counter_rng.draw_bits`, of integers that broadcast."""
    key = tensor("draw_bits", "key", key, torch.int64, _shape(key), _CPU, cast=True)
    counter = tensor("draw_bits", "counter", counter, torch.int64, _shape(counter), _CPU, cast=True)
    if key.shape != counter.shape:
        try:
            key, counter = torch.broadcast_tensors(key, counter)
        except RuntimeError:
            shapes = f"{tuple(key.shape)} and {tuple(counter.shape)}"
            raise ValueError(f"draw_bits: key and counter of shapes {shapes} do not broadcast") from None
    key = key.contiguous()
    counter = counter.contiguous()
    out = output(*key.shape, dtype=torch.int64)
    library().draw_bits(_at(key), _at(counter), c_int64(key.numel()), _at(out))
    return out


def pick_true(mask: Tensor, draw: Tensor) -> Tensor:
    """Return the index of the true value of rank ⌊draw · count⌋ in each row.

    Rows are (…, A) bool, indices (…,) int64, 0 for a row without a true value. A byte that is neither 0 nor 1 is true;
    a draw (…,) float64 outside [0, 1) gives the nearest true value, NaN the first.
    """
    mask = _read("pick_true", "mask", mask, torch.bool, _shape(mask) or (0,))
    draw = _read("pick_true", "draw", draw, torch.float64, mask.shape[:-1])
    out = output(*draw.shape, dtype=torch.int64)
    sizes = draw.numel(), mask.shape[-1], kernel_threads()
    library().pick_true(_at(mask), _at(draw), *map(c_int64, sizes), _at(out))
    return out


def first_best(scores: Sequence[Tensor], legal: Tensor) -> Tensor:
    """Return the index of the legal element with the least scores in each row.

    It is defined by `policies.packing.placements.first_best`. Scores are (N, …) float64 without NaN, `legal` (N, …)
    bool, of which any byte but 0 is true; (N,) int64, 0 without any.
    """
    shape = _shape(legal) or (0,)
    legal = _read("first_best", "legal", legal, torch.bool, shape)
    held = [_read("first_best", "scores", score, torch.float64, shape) for score in scores]
    out = output(shape[0], dtype=torch.int64)
    pointers = (c_void_p * len(held))(*map(Tensor.data_ptr, held))
    sizes = shape[0], prod(shape[1:])
    threads = c_int64(kernel_threads())
    library().first_best(pointers, c_int64(len(held)), _at(legal), *map(c_int64, sizes), threads, _at(out))
    return out


def any_true(values: Tensor) -> Tensor:
    """Return which rows of (N, …) bool have a true value, (N,) bool.

    A byte that is neither 0 nor 1 is true.
    """
    values = _read("any_true", "values", values, torch.bool, _shape(values) or (0,))
    out = output(values.shape[0], dtype=torch.bool)
    library().any_true(_at(values), c_int64(values.shape[0]), c_int64(prod(values.shape[1:])), _at(out))
    return out


def count_at_most(values: Tensor, mask: Tensor, bounds: Sequence[float]) -> Tensor:
    """Count the masked values of each row at or below L bounds.

    Rows are (N, A) float32, counts (N, L) uint8, 255 for more. A byte of `mask`, (N, A) bool, that is neither 0 nor 1
    is true.
    """
    shape = (*_shape(values)[:2], 0, 0)[:2]
    values = _read("count_at_most", "values", values, torch.float32, shape)
    mask = _read("count_at_most", "mask", mask, torch.bool, shape)
    out = output(len(values), len(bounds), dtype=torch.uint8)
    limits = (c_float * len(bounds))(*bounds)
    sizes = *values.shape, len(bounds), kernel_threads()
    library().count_at_most(_at(values), _at(mask), limits, *map(c_int64, sizes), _at(out))
    return out


def cut_boxes(key: Tensor, cuts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Cut complete sequences of boxes from a bin by keys (B,) int64.

    See `envs.packing.items.cutting.CutSequences`. `cuts` are its `numbers`. Corners (B, T, 3) int64, 0 after the last
    box, and catalogue rows (B, T), −1 there.
    """
    key = _read("cut_boxes", "key", key, torch.int64, _shape(key)[:1], cast=False)
    most = cuts[-2]
    corner = output(len(key), most, 3, dtype=torch.int64)
    rows = output(len(key), most, dtype=torch.int64)
    threads = c_int64(kernel_threads())
    library().cut_boxes(_numbers(cuts), _at(key), c_int64(len(key)), threads, _at(corner), _at(rows))
    return corner, rows


def cut_items(
    key: Tensor, position: Tensor, cuts: Sequence[int], kept_key: Tensor, last: Tensor, kept: Tensor
) -> Tensor:
    """Return the catalogue rows of the boxes at places of the sequences of keys.

    Rows and places are (N, K) int64, keys (N,) int64; see `cut_boxes`. A place outside [0, T) gives the nearest. Each
    row caches its last two sequences, written in place: their keys (N, 2), −1 for none, the index of the one read last
    (N,), and their rows (N, 2, T); all int64.
    """
    rows = len(key)

    def read(name: str, value: Tensor, *shape: int) -> Tensor:
        return _read("cut_items", name, value, torch.int64, shape, cast=False)

    key = read("key", key, rows)
    position = read("position", position, rows, *_shape(position)[1:2])
    kept_key = read("kept_key", kept_key, rows, 2)
    last = read("last", last, rows)
    kept = read("kept", kept, rows, 2, cuts[-2])
    out = output(*position.shape, dtype=torch.int64)
    sizes = c_int64(rows), c_int64(position.shape[1])
    cached = _at(kept_key), _at(last), _at(kept)
    library().cut_items(_numbers(cuts), _at(key), _at(position), *sizes, *cached, _at(out))
    return out


def _read(
    where: str, name: str, value: object, dtype: torch.dtype, shape: tuple[int, ...], cast: bool = True
) -> Tensor:
    return tensor(where, name, value, dtype, shape, _CPU, cast=cast).contiguous()


def _numbers(values: Sequence[int]) -> Any:
    return (c_int64 * len(values))(*values)


def _shape(value: object) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _at(whole: Tensor) -> c_void_p:
    return c_void_p(whole.data_ptr())
