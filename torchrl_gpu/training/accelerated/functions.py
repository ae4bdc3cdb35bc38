"""Functions of tensors as CUDA graphs, which one launch repeats."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, final

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_gpu.training.accelerated.graphs import Capture, Graph, capture_for, copied
from torchrl_gpu.training.accelerated.machine import Accelerator, are_close, casts


class Outcome(NamedTuple):
    """What a call has computed and written, for the comparison of two forms."""

    result: TensorDictBase
    written: list[Tensor]


class Recorded(NamedTuple):
    """A graph, and the data that it reads."""

    graph: Graph
    data: TensorDictBase


class GraphedBody(Accelerator[Recorded, TensorDictBase, tuple[list[Tensor], list[Tensor]], Outcome]):
    """Base class of functions of a tensordict whose faster form is a graph.

    A call copies its data into tensors that the graph reads. What the function keeps, such as weights, is read and
    written where it lies; random numbers come from torch's generator of the device.

    Args:
        device: Where it computes.
        what: Name of the function in the error of a failed capture.
        capture: Makes a graph; None takes CUDA's on a CUDA device, else none is made.
    """

    # What a first call makes, such as an optimizer's state, must be there.
    patience: ClassVar[int] = 1

    def __init__(self, device: torch.device, what: str, capture: Capture | None = None) -> None:
        self._capture = capture_for(device, capture, what)
        super().__init__(device, active=self._capture is not None)

    @abstractmethod
    def _body(self, data: TensorDictBase) -> TensorDictBase:
        """All operators of a call.

        It may not change `data`, and returns new tensors.
        """

    @abstractmethod
    def _written(self) -> list[Tensor]:
        """Tensors that a call changes and that the next one reads."""

    def _run(self, data: TensorDictBase, settings: object) -> TensorDictBase:
        """The results of a call.

        Args:
            data: Of any values; other shapes want another graph.
            settings: Numbers of Python that the operators read.
        """
        if not self.is_open:
            return self._body(data)
        recorded = self.form_for(self._key(data, settings), data)
        if recorded is None:
            return self._body(data)
        return self._replayed(recorded, data)

    def _note(self, data: TensorDictBase, settings: object) -> None:
        """Count a call that ran plainly."""
        self.note_call(self._key(data, settings))

    def _key(self, data: TensorDictBase, settings: object) -> object:
        return _shapes(data), casts(self.device), settings

    def _replayed(self, recorded: Recorded, data: TensorDictBase) -> TensorDictBase:
        values = list(data.values(True, True))
        if values:
            # One launch for all of them: a launch for each tensor is what the graph is there to save.
            torch._foreach_copy_(list(recorded.data.values(True, True)), values)
        recorded.graph.replay()
        # The cache may hold weights as they were before.
        torch.clear_autocast_cache()
        return copied(recorded.graph.result)

    # -- the machine's methods --

    def _saved(self) -> tuple[list[Tensor], list[Tensor]]:
        written = self._written()
        return written, [value.clone() for value in written]

    def _restore(self, saved: tuple[list[Tensor], list[Tensor]]) -> None:
        for value, before in zip(*saved, strict=True):
            # In place, since a graph reads its tensors where they were when it was captured.
            value.copy_(before)
        torch.clear_autocast_cache()

    def _made(self, data: TensorDictBase) -> Recorded:
        assert self._capture is not None
        kept = data.clone()
        graph = self._capture(lambda: self._body(kept), self.device)
        return Recorded(graph, kept)

    def _tried(self, form: Recorded | None, data: TensorDictBase) -> Outcome:
        result = self._body(data) if form is None else self._replayed(form, data)
        torch.clear_autocast_cache()
        return Outcome(result, [value.clone() for value in self._written()])

    def _compare(self, plain: Outcome, found: Outcome) -> None:
        for key, value in plain.result.items(True, True):
            if not are_close(found.result[key], value):
                name = key[-1] if isinstance(key, tuple) else key
                raise RuntimeError(f"{self._differs} in {name}")
        for one, other in zip(plain.written, found.written, strict=True):
            if not are_close(other, one):
                raise RuntimeError(f"{self._differs} in what it writes")

    @property
    def _differs(self) -> str:
        return f"{self.where}: the graph differs from its operators one by one"


@final
class GraphedFunction(GraphedBody):
    """A function of a tensordict, on CUDA one replay of a graph.

    The graph is made at the second of two calls that are alike; see `Accelerator`.

    Args:
        name: Of the function, in messages.
        function: Takes a tensordict, which it may not change, and returns one of new tensors. It may not read the
            device back.
        written: Gives the tensors that it changes.
        device: Where it computes.
        settings: Gives the numbers of Python that its operators read, and modes; None where there are none.
        capture: As in `GraphedBody`.
    """

    keeps_all = True

    def __init__(
        self,
        name: str,
        function: Callable[[TensorDictBase], TensorDictBase],
        written: Callable[[], Sequence[Tensor]],
        device: torch.device,
        *,
        settings: Callable[[], object] | None = None,
        capture: Capture | None = None,
    ) -> None:
        self._name = name
        self._function = function
        self._changed = written
        self._settings = settings
        super().__init__(device, f"{name}: the function", capture)

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        """The function's results, whose tensors the next call leaves alone."""
        settings = None if self._settings is None else self._settings()
        return self._run(data, settings)

    @property
    def where(self) -> str:
        return self._name

    def _body(self, data: TensorDictBase) -> TensorDictBase:
        return self._function(data)

    def _written(self) -> list[Tensor]:
        return list(self._changed())


def _shapes(data: TensorDictBase) -> list[tuple[NestedKey, torch.Size, torch.dtype]]:
    return [(key, value.shape, value.dtype) for key, value in data.items(True, True)]
