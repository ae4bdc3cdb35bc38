"""Kernel launches of an environment step, recorded without a GPU.

They can be compiled on such a machine, too.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from benchmarks.result_types import JsonObject
from torchrl_gpu.envs.packing.kernels.triton import solids as triton_solids

_TYPES = {torch.float32: "*fp32", torch.int64: "*i64", torch.int32: "*i32", torch.uint8: "*u8"}
_REGISTERS = re.compile(r"\bREG:(\d+)")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);")
_JUMP = re.compile(r"\bBRA\S* (?:.*, )?0x([0-9a-f]+)")


class Compiled(NamedTuple):
    """A kernel compiled for one chip.

    Attributes:
        instructions: Its disassembly: the address and the text of each.
        registers: Of a thread.
        shared_bytes: Of a program.
        spills: Instructions that read or write a thread's stack, where what no register holds goes.
        num_warps: Of a program.
        seconds: Of a core, from Python to the binary, ptxas included.
    """

    instructions: list[tuple[int, str]]
    registers: int
    shared_bytes: int
    spills: int
    num_warps: int
    seconds: float


class Launch(NamedTuple):
    """A kernel and what it was launched with."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: JsonObject

    @property
    def name(self) -> str:
        """Of the kernel."""
        return str(self.kernel.__name__)

    def source(self) -> tuple[ASTSource, JsonObject]:
        """Return Triton's source of the launch, and the options of its compilation.

        The source has the types and constants of the launch.

        Tensors lie at multiples of 16 bytes, as torch's allocator gives them.
        """
        names = list(inspect.signature(self.kernel.fn).parameters)
        positional, constants = names[: len(self.arguments)], names[len(self.arguments) :]
        signature = {name: _type_of(value) for name, value in zip(positional, self.arguments, strict=True)}
        signature |= dict.fromkeys(constants, "constexpr")
        aligned = {(i,): [["tt.divisibility", 16]] for i, a in enumerate(self.arguments) if isinstance(a, Tensor)}
        options = {name: value for name, value in self.options.items() if name not in names}
        return ASTSource(self.kernel, signature, {name: self.options[name] for name in constants}, aligned), options

    def cubin(self, capability: int) -> bytes:
        """The kernel's binary for a compute capability such as 90."""
        source, options = self.source()
        made: bytes = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["cubin"]
        return made

    def compiled(self, capability: int) -> Compiled:
        """Compile the kernel for a compute capability such as 90.

        Triton's cache returns it at once a second time.
        """
        source, options = self.source()
        started = _cpu_seconds()
        kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        seconds = _cpu_seconds() - started
        registers = registers_of(kernel.asm["cubin"])
        code = disassembled(kernel.asm["cubin"])
        spills = sum("LDL" in text or "STL" in text for _, text in code)
        shared = kernel.metadata.shared
        return Compiled(code, registers, shared, spills, kernel.metadata.num_warps, seconds)


def _cpu_seconds() -> float:
    """Return processor seconds of this process and those that it has waited for.

    So what other processes take of a core does not count.
    """
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _type_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return _TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def registers_of(cubin: bytes) -> int:
    """Return the registers of a thread."""
    found = _REGISTERS.search(_dumped(cubin, "--dump-resource-usage"))
    assert found
    return int(found[1])


def stack_of(cubin: bytes) -> int:
    """Return the bytes of a thread's stack, without which nothing spills."""
    return int(_dumped(cubin, "--dump-resource-usage").partition("STACK:")[2].split()[0])


def disassembled(cubin: bytes) -> list[tuple[int, str]]:
    """The address and the text of every instruction."""
    found = [(int(each[1], 16), each[2]) for each in _INSTRUCTION.finditer(_dumped(cubin, "--dump-sass"))]
    assert found
    return found


def _dumped(cubin: bytes, what: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        command = [triton.knobs.nvidia.cuobjdump.path, what, file.name]
        return subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=True
        ).stdout


def innermost_loops(code: list[tuple[int, str]]) -> list[list[str]]:
    """Return the instructions of the innermost loops of a disassembly.

    A jump to itself at the end is not one.
    """
    loops = []
    for at, text in code:
        to = _JUMP.search(text)
        start = int(to[1], 16) if to else at
        if start < at:
            loops.append((start, at))
    found = []
    for start, end in loops:
        within = [other for other in loops if start <= other[0] and other[1] <= end]
        if set(within) == {(start, end)}:
            found.append([text for at, text in code if start <= at <= end])
    return found


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Every launch from here on, in place of the launch itself."""
    made: list[Launch] = []

    def launcher(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(0 < size < 2**31 for size in grid)
        return lambda *arguments, **options: made.append(Launch(kernel, grid, arguments, options))

    with mock.patch.object(JITFunction, "__getitem__", launcher):
        yield made


@contextmanager
def as_on(capability: int) -> Iterator[None]:
    """Launch kernels as on a device of this compute capability."""
    pairs = triton_solids.pairs_on(capability // 10, capability % 10)
    with mock.patch.object(triton_solids, "_packed", return_value=pairs):
        yield


if __name__ == "__main__":
    from benchmarks.gpu import training_launches

    sys.exit(training_launches.main(sys.argv[1:]))
