"""All updates from a rollout as one launch: a CUDA graph that makes its batches, and an update from each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torchrl_gpu.policies.agents.base import Agent
from torchrl_gpu.training.collect.graphed import Capture, uncached_casts
from torchrl_gpu.training.updates.graphed import Graphed, Losses, Settings

Batches = Callable[[TensorDictBase], Iterable[TensorDictBase]]


@final
class GraphedLearning(Graphed):
    """All updates from a rollout as a function of it; on CUDA one replay of a graph, see `Graphed`.

    The graph makes the batches, too: for PPO values of states, advantages and the random order of each epoch. Before a
    replay the schedule is stepped through all updates for their learning rates; where it changes other settings, a
    graph is made only if it changes them alike at every call. Of an agent whose targets follow by the number of the
    update none is made. A graph takes memory by the number of its operators, so with K.

    Args:
        agent, optimizer, max_grad_norm, losses, capture: As in `Graphed`.
        batches: Gives the batches of a rollout, (B,) each, K of them or more; it may neither change the rollout nor
            read the device back. The rest is not drawn.
        updates: K.
        schedule: Of the optimizer; None for none.
    """

    instead = "updates are launched one by one"

    def __init__(
        self,
        agent: Agent,
        optimizer: Optimizer,
        max_grad_norm: float | None = None,
        *,
        batches: Batches,
        updates: int,
        schedule: LRScheduler | None = None,
        losses: Losses | None = None,
        capture: Capture | None = None,
    ) -> None:
        super().__init__(agent, optimizer, max_grad_norm, updates=updates, losses=losses, capture=capture)
        self.batches, self.updates, self.schedule = batches, updates, schedule
        if not agent.targets_update_every_step:
            self._capture = None

    @property
    def has_graphs(self) -> bool:
        """True where there is a graph, or one may be made; else a call has nothing over an update at a time."""
        return self._capture is not None

    def __call__(self, steps: TensorDictBase) -> list[dict[str, Tensor]]:
        """Updates K times, and steps the schedule as often; losses of each update, without gradients."""
        if self._capture is not None and self._fixed:
            groups = self.optimizer.param_groups
            plan = [[{**group, **each} for group, each in zip(groups, new, strict=True)] for new in self._in_turn()]
            result = self._run(steps, [[_unlike(*pair) for pair in zip(groups, new, strict=True)] for new in plan])
        else:  # torch warns of a schedule that is stepped before its optimizer is
            result = self._learn(steps, self._in_turn())
            self._fixed = self._fixed_in(steps, [[{} for _ in rates] for rates in self._rates])
        losses = {name: values.unbind() for name, values in result["losses"].items()}
        return [dict(zip(losses, each, strict=True)) for each in zip(*losses.values(), strict=True)]

    def _learn(self, data: TensorDictBase, plan: Iterable[Settings]) -> TensorDictBase:
        with nullcontext() if self._capture is None else uncached_casts(self.device):
            batches = iter(self.batches(data))
            losses = [self._update(next(batches), settings)["losses"] for settings in plan]
        return TensorDict({"losses": torch.stack(losses)})

    def _in_turn(self) -> Iterator[Settings]:
        for update in range(self.updates):
            yield self._settings(update)
            if self.schedule is not None:
                self.schedule.step()


def _unlike(group: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in settings.items() if name not in ("params", "lr") and value != group[name]}
    return {"lr": settings["lr"], **others}
