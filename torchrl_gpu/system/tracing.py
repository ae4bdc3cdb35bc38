"""Functions of tensors, recorded operator by operator and fused by torch.compile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

_LOG = logging.getLogger(__name__)
_recording = False


def is_traced() -> bool:
    """Whether operators are being recorded.

    C++ kernels, and blocks for a processor's cache, then give way to torch's operators.
    """
    return _recording or torch.compiler.is_compiling()


@final
class CompiledFunction:
    """A function of tensors, compiled with the backward passes in it.

    It draws the random numbers of the plain function. It is recorded once, on `inputs`: shapes, numbers of Python
    and whatever else its operators do not read from an input stay as they are then. Recording computes it, so that
    what it writes into its inputs is written.
    `function` takes and gives lists of tensors, and may write into its inputs, which are every tensor that changes from
    call to call, in contents or identity. The log names it, since it is waited for.
    """

    def __init__(
        self, name: str, function: Callable[[list[Tensor]], Sequence[Tensor]], inputs: Sequence[Tensor]
    ) -> None:
        global _recording
        _LOG.warning("torchrl_gpu compiles %s with torch.compile: a minute or so, less when its cache has them", name)
        _recording = True
        try:
            module = make_fx(lambda *given: list(function(list(given))))(*inputs)
        finally:
            _recording = False
        nodes: list[Node] = list(module.graph.nodes)
        places = [node for node in nodes if node.op == "placeholder"]
        output = nodes[-1]
        results: list[Node] = list(output.args[0])  # type: ignore[arg-type]
        # Numbers of the inputs that are results as they are.
        self._same = [places.index(node) if node in places else None for node in results]
        output.args = ([node for node in results if node not in places],)
        self._read = [number for number, node in enumerate(places) if node.users]
        for node in places:
            if not node.users:
                module.graph.erase_node(node)
        module.recompile()
        self._run = torch.compile(module, fullgraph=True, dynamic=False, options={"fallback_random": True})

    @torch.no_grad()
    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        # The casts of autocast are among the recorded operators.
        with torch.autocast(inputs[0].device.type, enabled=False):
            read = [inputs[number] for number in self._read]
            made = iter(self._run(*read))
        return [next(made) if number is None else inputs[number] for number in self._same]
