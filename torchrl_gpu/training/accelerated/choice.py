"""Whether a run takes CUDA graphs, and what speaks against them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from lightning.pytorch import Callback
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

GraphOption = bool | Literal["auto"]
"""Option of a run: with graphs, without, or with them on CUDA where nothing speaks against it."""

# Hooks that Lightning calls within an update.
_HOOKS = ("on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad")


def takes_graphs(where: str, option: str, asked: GraphOption, device: torch.device, against: Sequence[str]) -> bool:
    """Whether a run takes CUDA graphs.

    "auto" does on CUDA unless something speaks `against` it, which one line says.

    Raises:
        ValueError: Graphs were asked for, and something speaks against them.
    """
    if asked == "auto":
        if device.type != "cuda":
            return False
        if against:
            rank_zero_info(f"{where}: {option} auto: operators are launched one by one, as {against[0]}")
        return not against
    if asked and against:
        raise ValueError(f"{where}: {option} true cannot be had, as {against[0]}; {option} auto does without")
    return asked


def against_graphed_steps(reads_host: str | None, callbacks: Iterable[object]) -> list[str]:
    """What speaks against rollouts in a graph, in words.

    Args:
        reads_host: Why steps of the environment read the device back; None or "" where they do not.
        callbacks: Of the run.
    """
    found = [f"the environment reads the device back: {reads_host}"] if reads_host else []
    workers = [type(each).__name__ for each in callbacks if getattr(each, "steps_environments", False)]
    return found + [f"{name} steps the environment in other processes" for name in workers]


def against_graphed_updates(
    precision: str, scaled: bool, processes: int, callbacks: Iterable[object], weights: Iterable[Tensor]
) -> list[str]:
    """What speaks against updates in a graph, in words.

    Args:
        precision: Of the run.
        scaled: Whether gradients are scaled, as in float16.
        processes: How many share a run.
        callbacks: Of the run. One that is called in updates keeps them out of a graph, unless its attribute
            `watches_updates` says that it only may be.
        weights: That are learned.
    """
    found = [f"precision {precision} scales gradients, which makes the host wait"] if scaled else []
    if processes > 1:
        found.append(f"{processes} processes exchange gradients")
    watching = [type(each).__name__ for each in callbacks if _watches_updates(each)]
    found += [f"{name} is called within updates" for name in watching]
    if any(weight._backward_hooks for weight in weights):
        found.append("weights have hooks that are called with their gradients")
    if torch.is_anomaly_enabled():
        found.append("anomalies are looked for in every backward pass")
    return found


# A graph is one launch, within which no callback can be called. Lightning keeps no list of the hooks that a callback
# has, so that each is compared with the empty one of the base class.
def _watches_updates(callback: object) -> bool:
    said = getattr(callback, "watches_updates", None)
    if said is not None or not isinstance(callback, Callback):
        return bool(said)
    return any(getattr(type(callback), name) is not getattr(Callback, name) for name in _HOOKS)
