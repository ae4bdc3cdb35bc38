"""Checks of a network's inputs and outputs when an agent is made.

A wrong width fails there, with its name, and not in the middle of an update.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchrl_gpu.policies.spaces import AgentSpace, in_keys

# Rows of the trial pass: two, as one row would broadcast against anything.
_ROWS = 2

Shape = tuple[int, ...]


def check_network(
    agent: str, space: AgentSpace, network: nn.Module, gives: Sequence[Shape], takes: Sequence[Shape] = ()
) -> None:
    """Raise ValueError unless a network's inputs are observed and its outputs fit.

    The outputs are those for two rows of zeros. The pass is made without gradients, in eval mode, on the network's
    device, and leaves torch's generators as they were.

    Args:
        agent: Name of the agent, for messages.
        space: What is observed.
        network: The network.
        gives: Shape, without the rows, of each tensor that it must return.
        takes: Shapes, without the rows, of its float32 arguments behind the observations.
    """
    name = type(network).__name__
    keys = checked_in_keys(agent, space, network)
    inputs = [space.zeros(key, _ROWS) for key in keys]
    inputs += [torch.zeros(_ROWS, *shape, dtype=torch.float32, device="cpu") for shape in takes]
    given = [f"{key} {_shape_text(space.observations[key][0])}" for key in keys]
    given += [_shape_text(shape) for shape in takes]
    wanted = " and ".join(_shape_text(shape) for shape in gives)
    fault = f"{agent}: {name} must return {wanted} for {', '.join(given)}"
    try:
        # Whatever the network raises is named with what was asked of it.
        outputs = _outputs(network, inputs)
    except Exception as error:
        raise ValueError(f"{fault}, but raises {type(error).__name__}: {error}") from error
    shapes = [each.shape if isinstance(each, Tensor) else None for each in outputs]
    if shapes != [torch.Size((_ROWS, *shape)) for shape in gives]:
        raise ValueError(f"{fault}, not {_outputs_text(outputs)}")


def _outputs_text(outputs: Sequence[object]) -> str:
    """What a network returned, for a message."""
    texts = []
    for each in outputs:
        if not isinstance(each, Tensor):
            texts.append(type(each).__name__)
        elif each.shape[:1] != (_ROWS,):
            return "another batch shape"
        else:
            shape = each.shape[1:]
            texts.append(_shape_text(shape))
    return " and ".join(texts)


def checked_in_keys(agent: str, space: AgentSpace, network: nn.Module) -> list[str]:
    """Inputs of a network.

    ValueError unless they are named and observed.
    """
    named = getattr(network, "in_keys", None)
    name = type(network).__name__
    if not isinstance(named, list | tuple) or not all(isinstance(key, str) for key in named):
        fault = "has none" if named is None else f"has {named!r}"
        raise ValueError(f"{agent}: {name} {fault} as in_keys: list the observations that its forward takes")
    missing = [key for key in in_keys(network) if key not in space.observations]
    if missing:
        raise ValueError(
            f"{agent}: {name} takes {', '.join(missing)}, which {space.source} does not observe: it has {space.names}"
        )
    return in_keys(network)


@torch.no_grad()
def _outputs(network: nn.Module, inputs: Sequence[Tensor]) -> list[object]:
    weights = [*network.parameters(), *network.buffers()]
    device = weights[0].device if weights else torch.device("cpu")
    # Modules are put back one by one, as some may have been in eval mode before.
    training = [module for module in network.modules() if module.training]
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            out = network.eval()(*(each.to(device) for each in inputs))
    finally:
        for module in training:
            module.training = True
    return list(out) if isinstance(out, tuple | list) else [out]


def _shape_text(shape: Sequence[int]) -> str:
    return f"({', '.join(['…', *map(str, shape)])})"
