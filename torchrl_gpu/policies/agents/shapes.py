"""Validation of a network's inputs and outputs when an agent is made: a wrong width fails then, not in an update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchrl_gpu.policies.spaces import AgentSpace, in_keys

_ROWS = 2

Shape = tuple[int, ...]


def check_network(
    agent: str, space: AgentSpace, network: nn.Module, gives: Sequence[Shape], takes: Sequence[Shape] = ()
) -> None:
    """ValueError unless a network's inputs are observed, and its outputs for two rows of zeros fit the agent.

    Shapes are those behind the rows: of each tensor that it must give, and of what it takes after the observations,
    float32. The pass is made without gradients, in eval mode, where the network is; torch's generators stay untouched.
    """
    name, keys = type(network).__name__, checked_in_keys(agent, space, network)
    inputs = [space.zeros(key, _ROWS) for key in keys] + [
        torch.zeros(_ROWS, *shape, dtype=torch.float32, device="cpu") for shape in takes
    ]
    wanted = " and ".join(map(_shown, gives))
    given = ", ".join([f"{key} {_shown(space.observations[key][0])}" for key in keys] + list(map(_shown, takes)))
    wanted = f"{agent}: want {name} to give {wanted} for {given}"
    try:
        outputs = _outputs(network, inputs)
    except Exception as error:
        raise ValueError(f"{wanted}; it raised {type(error).__name__}: {error}") from error
    came = [each.shape if isinstance(each, Tensor) else type(each).__name__ for each in outputs]
    if came != [torch.Size((_ROWS, *shape)) for shape in gives]:
        shown = [each if isinstance(each, str) else _shown(each[1:]) for each in came]
        rows = [] if all(isinstance(each, str) or each[:1] == (_ROWS,) for each in came) else ["another batch shape"]
        raise ValueError(f"{wanted}; got {' and '.join(rows or shown)}")


def checked_in_keys(agent: str, space: AgentSpace, network: nn.Module) -> list[str]:
    """Inputs of a network; ValueError unless they are named and observed."""
    named, name = getattr(network, "in_keys", None), type(network).__name__
    if not isinstance(named, list | tuple) or not all(isinstance(key, str) for key in named):
        raise ValueError(
            f"{agent}: want a network with in_keys, a list of the observations that its forward takes;"
            f" {name} has {'none' if named is None else repr(named)}"
        )
    if missing := [key for key in in_keys(network) if key not in space.observations]:
        raise ValueError(
            f"{agent}: {name} wants {', '.join(missing)} to observe; {space.source} gives only {space.names}"
        )
    return in_keys(network)


@torch.no_grad()
def _outputs(network: nn.Module, inputs: Sequence[Tensor]) -> list[object]:
    device = next((each.device for each in [*network.parameters(), *network.buffers()]), torch.device("cpu"))
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
