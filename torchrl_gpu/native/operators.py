"""Small C++ operators over CPU tensors; each is defined by a torch form beside its caller."""

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
    """True where these operators take `tensor`: on a CPU with a compiler, and not while torch.compile traces."""
    return tensor.device.type == "cpu" and not is_traced() and not problem()


def output(*shape: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised output tensor for C++: contiguous, on the CPU and of this dtype, regardless of torch's defaults."""
    return torch.empty(shape, dtype=dtype, device=_CPU)


def of_type(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Fields of a struct that have one type, by their names in order."""
    return [(name, kind) for name in names.split()]


class Arguments(Structure):
    """A ctypes mirror of a struct of the C++ headers, filled by the names of its fields, which must keep its order."""

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor | None], **numbers: float | tuple[float, ...]) -> Self:
        """Numbers, and pointers to tensors, which live as long as the arguments; null for None."""
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
            raise ValueError(f"draw_bits: want a key and a counter that broadcast; got {shapes}") from None
    key, counter = key.contiguous(), counter.contiguous()
    out = output(*key.shape, dtype=torch.int64)
    library().draw_bits(_at(key), _at(counter), c_int64(key.numel()), _at(out))
    return out


def pick_true(mask: Tensor, draw: Tensor) -> Tensor:
    """Index of the true value of rank ⌊draw · count⌋ in each row of (…, A) bool, (…,) int64; 0 where there is none.

    A byte that is neither 0 nor 1 is true; a draw (…,) float64 outside [0, 1) gives the nearest true value, NaN the
    first.
    """
    mask = _read("pick_true", "mask", mask, torch.bool, _shape(mask) or (0,))
    draw = _read("pick_true", "draw", draw, torch.float64, mask.shape[:-1])
    out = output(*draw.shape, dtype=torch.int64)
    sizes = draw.numel(), mask.shape[-1], kernel_threads()
    library().pick_true(_at(mask), _at(draw), *map(c_int64, sizes), _at(out))
    return out


def first_best(scores: Sequence[Tensor], legal: Tensor) -> Tensor:
    """Index of the legal element of each row with the least scores, as `policies.packing.placements.first_best`.

    Scores are (N, …) float64 without NaN, `legal` (N, …) bool, of which any byte but 0 is true; (N,) int64, 0 without
    any.
    """
    shape = _shape(legal) or (0,)
    legal = _read("first_best", "legal", legal, torch.bool, shape)
    held = [_read("first_best", "scores", score, torch.float64, shape) for score in scores]
    out = output(shape[0], dtype=torch.int64)
    pointers, sizes = (c_void_p * len(held))(*map(Tensor.data_ptr, held)), (shape[0], prod(shape[1:]))
    threads = c_int64(kernel_threads())
    library().first_best(pointers, c_int64(len(held)), _at(legal), *map(c_int64, sizes), threads, _at(out))
    return out


def any_true(values: Tensor) -> Tensor:
    """True where a row of (N, …) bool has a true value, (N,) bool; a byte that is neither 0 nor 1 is true."""
    values = _read("any_true", "values", values, torch.bool, _shape(values) or (0,))
    out = output(values.shape[0], dtype=torch.bool)
    library().any_true(_at(values), c_int64(values.shape[0]), c_int64(prod(values.shape[1:])), _at(out))
    return out


def count_at_most(values: Tensor, mask: Tensor, bounds: Sequence[float]) -> Tensor:
    """Numbers of masked values of each row of (N, A) float32 at or below L bounds, (N, L) uint8, 255 for more.

    A byte of `mask`, (N, A) bool, that is neither 0 nor 1 is true.
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
    """Complete sequences of boxes cut from a bin by keys (B,) int64, see `envs.packing.items.cutting.CutSequences`.

    `cuts` are its `numbers`. Corners (B, T, 3) int64, 0 after the last box, and catalogue rows (B, T), −1 there.
    """
    key = _read("cut_boxes", "key", key, torch.int64, _shape(key)[:1], cast=False)
    most = cuts[-2]
    corner, rows = output(len(key), most, 3, dtype=torch.int64), output(len(key), most, dtype=torch.int64)
    threads = c_int64(kernel_threads())
    library().cut_boxes(_numbers(cuts), _at(key), c_int64(len(key)), threads, _at(corner), _at(rows))
    return corner, rows


def cut_items(
    key: Tensor, position: Tensor, cuts: Sequence[int], kept_key: Tensor, last: Tensor, kept: Tensor
) -> Tensor:
    """Catalogue rows (N, K) int64 of the boxes at places (N, K) of the sequences of keys (N,); see `cut_boxes`.

    A place outside [0, T) gives the nearest. Each row caches its last two sequences, written in place: their keys (N,
    2), −1 for none, the index of the one read last (N,), and their rows (N, 2, T); all int64.
    """
    rows = len(key)
    forms = {
        "key": (key, (rows,)),
        "position": (position, (rows, *_shape(position)[1:2])),
        "kept_key": (kept_key, (rows, 2)),
        "last": (last, (rows,)),
        "kept": (kept, (rows, 2, cuts[-2])),
    }
    key, position, *kept_before = (
        _read("cut_items", name, value, torch.int64, shape, cast=False) for name, (value, shape) in forms.items()
    )
    out = output(*position.shape, dtype=torch.int64)
    sizes = c_int64(rows), c_int64(position.shape[1])
    library().cut_items(_numbers(cuts), _at(key), _at(position), *sizes, *map(_at, kept_before), _at(out))
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
