"""CUDA graphs: many launches recorded once, and repeated by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import torch
from tensordict import TensorDictBase
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode

from torchrl_gpu.policies.generators import generators_kept

Body = Callable[[], TensorDictBase]

# The first loads libraries and compiles kernels, later ones settle what is chosen by timing.
_WARM_UPS = 3


@dataclass(frozen=True)
class Graph:
    """A captured CUDA graph and its outputs.

    Attributes:
        replay: Runs it again.
        result: What it gives, overwritten by each replay.
    """

    replay: Callable[[], object]
    result: TensorDictBase


def copied(result: TensorDictBase) -> TensorDictBase:
    """A copy of what a graph gives, whose next replay overwrites it.

    It takes one launch for all tensors of a kind.
    """
    copy = result.apply(torch.empty_like)
    values = list(result.values(True, True))
    if values:
        torch._foreach_copy_(list(copy.values(True, True)), values)
    return copy


Capture = Callable[[Body, torch.device], Graph]
"""Makes a graph of a function without arguments on a device."""


def capture_cuda(body: Body, device: torch.device, what: str = "the function") -> Graph:
    """Capture a CUDA graph of `body`, which is run a few times before.

    The generator of the device is left as it was.

    Args:
        body: A function without arguments.
        device: A CUDA device.
        what: Name of the function in the error.

    Raises:
        RuntimeError: `body` does what no graph can hold. The message names the operator.
    """
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle()
    with generators_kept(device), torch.cuda.device(device):
        here = torch.cuda.current_stream()
        aside = torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                body()
        here.wait_stream(aside)
        try:
            with operator_named(what), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = body()
        except Exception:
            # Else random numbers could not be drawn outside of graphs, and the allocator would go on to keep memory for
            # this one.
            graph.reset()
            # The capture may have ended in order, or torch may have no such function.
            with suppress(RuntimeError, AttributeError):
                torch._C._cuda_endAllocateToPool(device.index or 0, pool)
                torch._C._cuda_releasePool(device.index or 0, pool)
            # There the generator ends a capture only with one that succeeds.
            if torch.__version__ < TorchVersion("2.15"):
                with torch.cuda.graph(torch.cuda.CUDAGraph()):
                    torch.zeros(1, dtype=torch.float32, device=device)
            raise
    return Graph(graph.replay, result)


def capture_for(device: torch.device, capture: Capture | None, what: str) -> Capture | None:
    """What captures on a device, `capture` or CUDA's own, or None without graphs.

    Args:
        device: Where the function computes.
        capture: What captures; None for CUDA's own on a CUDA device.
        what: Name of the function in the error of a failed capture.
    """
    if capture is None and device.type == "cuda":
        return partial(capture_cuda, what=what)
    return capture


@contextmanager
def operator_named(what: str) -> Iterator[None]:
    """Name the operator at which a capture of `what` fails."""
    last = _LastOperator()
    try:
        with last:
            yield
    except Exception as error:
        # The end of a broken capture raises, too, and says less.
        cause = last.error or error
        lines = str(cause).strip().splitlines()
        reason = lines[0] if lines else type(cause).__name__
        raise RuntimeError(f"{what} cannot be captured in a CUDA graph: {last.name} fails: {reason}") from error


# CUDA's error of a failed capture does not say which operator no graph can hold, and that is what somebody has to know
# to change the function. So the name of each operator is noted as it is called.
class _LastOperator(TorchDispatchMode):
    """Record of the operator that was called last, and of its exception."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "no operator"
        self.error: Exception | None = None

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.name = str(func)
        self.error = None
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            self.error = error
            raise
