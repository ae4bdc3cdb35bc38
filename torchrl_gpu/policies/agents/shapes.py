"""What a network gives, looked at once when an agent is made: a wrong width is found there, not deep in an update."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchrl_gpu.policies.spaces import AgentSpace, in_keys

_ROWS = 2

Shape = tuple[int, ...]


def check_shapes(
    agent: str, space: AgentSpace, network: nn.Module, gives: Sequence[Shape], takes: Sequence[Shape] = ()
) -> None:
    """ValueError unless a network gives what the agent wants of it, for two rows of zeros.

    The pass is made without gradients, in eval mode, on the environment's device, by a copy where the network is on
    another. Torch's generators stay as they are.

    Args:
        agent: Of the message.
        space: Gives shapes and dtypes of observations.
        network: With the observations that it takes in `in_keys`.
        gives: Shapes behind the rows of each tensor that it must give.
        takes: Shapes behind the rows of what it takes after the observations, float32.
    """
    keys, name = in_keys(network), type(network).__name__
    inputs = [torch.zeros(_ROWS, *space.observations[key], dtype=space.dtypes[key]) for key in keys]
    inputs += [torch.zeros(_ROWS, *shape) for shape in takes]
    wanted = " and ".join(_shown(shape) for shape in gives)
    given = ", ".join([f"{key} {_shown(space.observations[key])}" for key in keys] + [_shown(shape) for shape in takes])
    try:
        outputs = _outputs(network, inputs, space.device)
    except Exception as error:
        raise ValueError(
            f"{agent}: want {name} to give {wanted} for {given}; it raised {type(error).__name__}: {error}"
        ) from error
    came = [each.shape if isinstance(each, Tensor) else type(each).__name__ for each in outputs]
    if came != [torch.Size((_ROWS, *shape)) for shape in gives]:
        shown = [each if isinstance(each, str) else _shown(each[1:]) for each in came]
        rows = [] if all(isinstance(each, str) or each[:1] == (_ROWS,) for each in came) else ["another batch shape"]
        raise ValueError(f"{agent}: want {name} to give {wanted} for {given}; got {' and '.join(rows or shown)}")


@torch.no_grad()
def _outputs(network: nn.Module, inputs: Sequence[Tensor], device: torch.device) -> list[object]:
    """What a network gives on a device."""
    weights = [*network.parameters(), *network.buffers()]
    if any(weight.device.type != device.type for weight in weights):
        network = copy.deepcopy(network).to(device)
    training = [module for module in network.modules() if module.training]
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            out = network.eval()(*(each.to(device) for each in inputs))
    finally:
        for module in training:
            module.training = True
    return list(out) if isinstance(out, tuple | list) else [out]


def _shown(shape: Sequence[int]) -> str:
    return f"({', '.join(['…', *map(str, shape)])})"
