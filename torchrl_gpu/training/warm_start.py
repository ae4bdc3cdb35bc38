"""Warm start of a network with the weights of another one, layer by layer, by their names."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from torchrl_gpu.policies.weights import is_dense
from torchrl_gpu.system.archives import read_archive

_LOG = logging.getLogger(__name__)

_MOST_TENSORS = 10_000  # whose names are compared


@torch.no_grad()
def take_network(module: nn.Module, path: str) -> list[str]:
    """Copies the weights that a checkpoint has of a network into it; the names of those taken.

    Networks have other prefixes in other agents: the prefixes of checkpoint and module under which most names are the
    same are laid upon each other. Layers that the checkpoint does not have stay as they are; targets are never taken.
    Parameters are copied, and buffers that checkpoints keep.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is neither a checkpoint nor a file with `model_state_dict`, has no layer of the module, or one of
            another shape.
    """
    where = f"warm_start {path}"
    content = read_archive(Path(path), "warm_start")
    state = content.get("state_dict", content.get("model_state_dict"))
    if not isinstance(state, Mapping):
        raise ValueError(f"{where}: want a checkpoint with a state_dict; got none in it")
    if len(state) > _MOST_TENSORS:
        raise ValueError(f"{where}: want at most {_MOST_TENSORS:,} tensors; got {len(state):,}")
    given = {str(name): value for name, value in state.items() if is_dense(value) and "target" not in str(name)}
    own = _saved_tensors(module)
    inside, outside = _best_prefixes(own, given)
    pairs = {
        name: given[outside + name.removeprefix(inside)]
        for name in own
        if name.startswith(inside) and outside + name.removeprefix(inside) in given
    }
    if not pairs:
        raise ValueError(f"{where}: want layers such as {next(iter(own), 'none')}; got {', '.join(list(given)[:3])}")
    for name, value in pairs.items():
        if value.shape != own[name].shape or value.is_floating_point() is not own[name].is_floating_point():
            wanted, came = tuple(own[name].shape), tuple(value.shape)
            raise ValueError(f"{where}: want {name} of shape {wanted}; got {came}")
        if not value.isfinite().all():
            raise ValueError(f"{where}: want finite weights; {outside + name.removeprefix(inside)} has others")
    for name, value in pairs.items():
        own[name].copy_(value)
    left = [name for name in own if name not in pairs]
    _LOG.info("warm_start: %d tensors taken from %s%s", len(pairs), path, f"; not {', '.join(left)}" if left else "")
    return list(pairs)


def _saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; `state_dict` leaves out those that a loss of TorchRL holds instead."""
    found: dict[str, Tensor] = dict(module.named_parameters())
    for prefix, each in module.named_modules():
        kept = {name: value for name, value in each.named_buffers(recurse=False)}
        kept = {name: value for name, value in kept.items() if name not in each._non_persistent_buffers_set}
        found |= {f"{prefix}.{name}" if prefix else name: value for name, value in kept.items()}
    return found


def _best_prefixes(own: Iterable[str], given: Mapping[str, Tensor]) -> tuple[str, str]:
    """The beginnings of names behind which most names are the same; of equally good ones the longest."""
    names = list(own)
    best, found = (0, 0), ("", "")
    for inside in _prefixes(names):
        rest = [name.removeprefix(inside) for name in names if name.startswith(inside)]
        for outside in _prefixes(given):
            score = sum(outside + name in given for name in rest), len(inside)
            if score > best:
                best, found = score, (inside, outside)
    return found


def _prefixes(names: Iterable[str]) -> list[str]:
    parts = (name.split(".") for name in names)
    return list(dict.fromkeys(["", *(".".join(p[:i]) + "." for p in parts for i in range(1, len(p)))]))
