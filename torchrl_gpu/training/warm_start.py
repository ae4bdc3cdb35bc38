"""Weights of another run's network, to begin with."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from torchrl_gpu.policies.weights import is_dense
from torchrl_gpu.system.archives import read_archive

_LOG = logging.getLogger(__name__)

# Tensors of a file whose names are compared.
_MOST_TENSORS = 10_000


@torch.no_grad()
def take_network(module: nn.Module, path: str) -> list[str]:
    """Copy the weights that a checkpoint has of a network into it.

    Networks have other prefixes in other agents. So the prefix of the checkpoint and that of the module are chosen
    under which most names are the same. Layers that the checkpoint does not have stay as they are; targets are never
    taken. Parameters are copied, and buffers that checkpoints keep.

    Returns:
        Names of the weights that were taken.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is neither a checkpoint nor a file with `model_state_dict`, has no layer of the module, or one of
            another shape.
    """
    where = f"warm_start {path}"
    own = _saved_tensors(module)
    given = _weights_of(where, path)
    inside, outside = _best_prefixes(own, given)
    sources = {name: outside + name.removeprefix(inside) for name in own if name.startswith(inside)}
    sources = {name: source for name, source in sources.items() if source in given}
    if not sources:
        wanted = next(iter(own), "none")
        raise ValueError(f"{where}: no layer such as {wanted} in it, only {', '.join(list(given)[:3])}")
    for name, source in sources.items():
        _check_weight(where, name, own[name], source, given[source])
    # Only once all have been checked, so that a wrong file changes nothing.
    for name, source in sources.items():
        own[name].copy_(given[source])
    left = [name for name in own if name not in sources]
    left_out = f"; not {', '.join(left)}" if left else ""
    _LOG.info("warm_start: %d tensors taken from %s%s", len(sources), path, left_out)
    return list(sources)


def _weights_of(where: str, path: str) -> dict[str, Tensor]:
    """Dense weights of a file by name, without those of targets."""
    content = read_archive(Path(path), "warm_start")
    state = content.get("state_dict", content.get("model_state_dict"))
    if not isinstance(state, Mapping):
        raise ValueError(f"{where}: no state_dict in it: give a checkpoint of a run")
    if len(state) > _MOST_TENSORS:
        raise ValueError(f"{where}: {len(state):,} tensors, more than {_MOST_TENSORS:,}")
    return {str(name): value for name, value in state.items() if is_dense(value) and "target" not in str(name)}


def _check_weight(where: str, name: str, own: Tensor, source: str, value: Tensor) -> None:
    """ValueError unless a weight of a file fits the module's own and is finite."""
    same_kind = value.is_floating_point() is own.is_floating_point()
    if value.shape != own.shape or not same_kind:
        raise ValueError(f"{where}: {name} has shape {tuple(own.shape)} here, and {tuple(value.shape)} in the file")
    if not value.isfinite().all():
        raise ValueError(f"{where}: {source} is not finite")


def _saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name.

    `state_dict` would leave out those that a loss of TorchRL holds in place of a module.
    """
    found: dict[str, Tensor] = dict(module.named_parameters())
    for prefix, each in module.named_modules():
        for name, value in each.named_buffers(recurse=False):
            if name not in each._non_persistent_buffers_set:
                found[f"{prefix}.{name}" if prefix else name] = value
    return found


# The same layer has another prefix in each agent. To ask the user for both prefixes would be simpler, and wants
# somebody who knows how both agents are made. Names of weights have few dots, so that all pairs of prefixes can be
# tried.
def _best_prefixes(own: Iterable[str], given: Mapping[str, Tensor]) -> tuple[str, str]:
    """Prefixes of module and file behind which most names are the same.

    Of equally good ones the longest is taken.
    """
    names = list(own)
    best = (0, 0)
    found = ("", "")
    for inside in _prefixes(names):
        rest = [name.removeprefix(inside) for name in names if name.startswith(inside)]
        for outside in _prefixes(given):
            same = sum(outside + name in given for name in rest)
            score = (same, len(inside))
            if score > best:
                best = score
                found = (inside, outside)
    return found


def _prefixes(names: Iterable[str]) -> list[str]:
    """All beginnings of names that end at a dot, each once, the empty one first."""
    prefixes = {"": None}
    for name in names:
        parts = name.split(".")
        for length in range(1, len(parts)):
            prefixes[".".join(parts[:length]) + "."] = None
    return list(prefixes)
