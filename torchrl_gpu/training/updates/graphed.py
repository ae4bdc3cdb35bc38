"""CUDA graphs of updates: of one, or of all of a training step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.training.accelerated.functions import GraphedBody, Outcome, Recorded
from torchrl_gpu.training.accelerated.graphs import Capture
from torchrl_gpu.training.accelerated.machine import are_close, uncached_casts
from torchrl_gpu.training.updates.learner import Learner, Losses
from torchrl_gpu.training.updates.optimizers import clip_gradients, set_capturable

Settings = list[dict[str, object]]
"""Optimizer options of an update that differ from those of the optimizer's groups, for each group."""

# How far apart weights of both ways may end, of the way that they move.
_FAR = 0.1

Batches = Callable[[TensorDictBase], Iterable[TensorDictBase]]
"""Gives the batches of a rollout."""


class Graphed(GraphedBody):
    """Base class of updates of an agent, on CUDA one replay of a graph.

    An update is: `Agent.losses`, the backward pass of their sum, clipping, a step of the optimizer,
    `Agent.update_targets`. A call copies its data into tensors that the graph reads; weights, targets and the
    optimizer's state are read and written where they are, learning rates taken from the optimizer at every call. Random
    numbers come from torch's generator of the device. A call leaves no gradients, and a replay calls no hooks.

    A graph is made at the second of two calls that are alike in shapes, optimizer settings but the learning rate,
    autocast and training mode; other calls, hence the first, run one operator after the other. So do all calls, after a
    warning, where no graph can be made or its first replay gives something else.

    Args:
        agent: Its losses and `update_targets` may not read the device back.
        optimizer: Of the agent's weights; keeps its state on the device, see `set_capturable`.
        max_grad_norm: Gradients of each of the optimizer's groups are clipped to this norm; None leaves them.
        updates: How many a call makes, K.
        losses: What is called in place of `agent.losses`, such as that compiled.
        capture: As in `GraphedRollout`.
    """

    clips_together = False

    def __init__(
        self,
        agent: Learner,
        optimizer: Optimizer,
        max_grad_norm: float | None = None,
        *,
        updates: int = 1,
        losses: Losses | None = None,
        capture: Capture | None = None,
    ) -> None:
        self.agent = agent
        self.optimizer = optimizer
        self.max_grad_norm = max_grad_norm
        self.losses = agent.losses if losses is None else losses
        what = f"{type(self).__name__}: the update"
        super().__init__(agent.parameters_to_train[0].device, what, capture)
        size = updates, len(optimizer.param_groups)
        self._all_rates = torch.zeros(size, device=self.device, dtype=torch.float32)
        # Of each update, of each group.
        self._rates = [list(row.unbind()) for row in self._all_rates.unbind()]
        self._wanted_rates: list[list[float | Tensor]] = [[0.0] * size[1] for _ in range(updates)]
        self._rates_there: list[list[float | None]] = [[None] * size[1] for _ in range(updates)]
        self._plan: Sequence[Settings] = []
        # Weights before a first try.
        self._before: list[Tensor] = []
        self._on_load(optimizer)
        optimizer.register_load_state_dict_post_hook(self._on_load)

    @abstractmethod
    def _learn(self, data: TensorDictBase, plan: Iterable[Settings]) -> TensorDictBase:
        """Make all updates of a call, one operator after the other: the body of a graph.

        Args:
            data: May not be changed.
            plan: Settings of each update, by `_settings`.

        Returns:
            Numbers that a replay must give as well, in new tensors.
        """

    def _learn_by(self, data: TensorDictBase, plan: Sequence[Settings]) -> TensorDictBase:
        self._plan = plan
        self._put_rates(range(len(plan)))
        return self._run(data, self._fixed_in(plan))

    def _body(self, data: TensorDictBase) -> TensorDictBase:
        return self._learn(data, self._plan)

    # -- the update ---------------------------------------------------------------------------------------------------

    def _settings(self, update: int = 0) -> Settings:
        """Where an update finds the present learning rates.

        `_put_rates` puts them there.
        """
        groups = self.optimizer.param_groups
        if not self.is_open:
            return [{} for _ in groups]
        self._wanted_rates[update] = [group["lr"] for group in groups]
        return [{"lr": rate} for rate in self._rates[update]]

    # A schedule sets numbers of Python, and a graph holds such numbers as they were when it was captured. So every
    # update reads its learning rates from tensors, which are filled before a replay, and only where a rate has changed.
    def _put_rates(self, updates: Iterable[int]) -> None:
        """Write the learning rates of some updates where the graph reads them.

        Those that are there already are left.
        """
        if not self.is_open:
            return
        changed = []
        for update in updates:
            for group, rate in enumerate(self._wanted_rates[update]):
                if isinstance(rate, Tensor):
                    self._rates[update][group].copy_(rate)
                    self._rates_there[update][group] = None
                elif rate != self._rates_there[update][group]:
                    changed.append((update, group, rate))
        # As under a schedule: one copy, which waits for nothing.
        all_changed = len(changed) == self._all_rates.numel()
        at_once = self.device.type == "cuda" and all_changed
        if at_once:
            rates = torch.tensor(self._wanted_rates, dtype=torch.float32, device="cpu")
            self._all_rates.copy_(rates.pin_memory(), non_blocking=True)
        for update, group, rate in changed:
            if not at_once:
                self._rates[update][group].fill_(rate)
            self._rates_there[update][group] = rate

    def _update(self, batch: TensorDictBase, settings: Settings) -> TensorDictBase:
        batch = batch.copy()
        self.optimizer.zero_grad()
        with uncached_casts(self.device) if self.is_open else nullcontext():
            with set_exploration_type(ExplorationType.RANDOM):
                losses = self.losses(batch)
            torch.stack(list(losses.values())).sum().backward()
            groups = self.optimizer.param_groups
            if self.max_grad_norm is not None:
                for weights in self._clipped():
                    clip_gradients(weights, self.max_grad_norm)
            with _changed(groups, settings):
                self.optimizer.step()
            self.optimizer.zero_grad()
            if self.agent.targets_update_every_step:
                self.agent.update_targets(1)
        detached = {name: loss.detach() for name, loss in losses.items()}
        made = TensorDict({"losses": TensorDict(detached)})
        # Iterating over a tensordict would give its rows.
        if "td_error" in batch.keys():  # noqa: SIM118
            made.set("td_error", batch["td_error"])
        return made

    def _clipped(self) -> list[list[Tensor]]:
        """Weights whose gradients are clipped together, lot by lot."""
        lots = [group["params"] for group in self.optimizer.param_groups]
        if self.clips_together:
            return [list(chain.from_iterable(lots))]
        return lots

    # -- the graph ----------------------------------------------------------------------------------------------------

    def _on_load(self, optimizer: Optimizer) -> None:
        """Drop the graph, since a loaded optimizer has its state in other tensors."""
        self.forget()
        if self.device.type == "cuda":
            set_capturable(optimizer)

    def _fixed_in(self, plan: Sequence[Settings]) -> tuple[object, ...]:
        """All that a graph of such a call takes for granted, but shapes."""
        settings = [_without_rates(groups) for groups in (self.optimizer.param_groups, *plan)]
        return settings, self.agent.training, self._numbers()

    def _numbers(self) -> object:
        """Numbers of Python that a call takes for granted."""
        return None

    def _weights(self) -> list[Tensor]:
        return [value for value in self.agent.state_dict().values() if isinstance(value, Tensor)]

    def _written(self) -> list[Tensor]:
        kept: list[Tensor] = []
        for entries in self.optimizer.state.values():
            for name, value in entries.items():
                if value is not None:
                    self._check_state(name, value)
                    kept.append(value)
        return [*self._weights(), *kept]

    def _check_state(self, name: str, value: object) -> None:
        """ValueError unless an entry of the optimizer's state can be written by a graph."""
        if isinstance(value, Tensor) and value.device == self.device:
            return
        where = f"on {value.device}" if isinstance(value, Tensor) else f"as {type(value).__name__}"
        raise ValueError(
            f"{type(self).__name__}: {type(self.optimizer).__name__} keeps {name} {where}, where a CUDA graph cannot"
            f" write it: take an optimizer whose state is in tensors on {self.device}"
        )

    def _saved(self) -> tuple[list[Tensor], list[Tensor]]:
        written, before = super()._saved()
        self._before = before[: len(self._weights())]
        return written, before

    def _compare(self, plain: Outcome, found: Outcome) -> None:
        for key, value in plain.result.items(True, True):
            if not are_close(found.result[key], value):
                name = key[-1] if isinstance(key, tuple) else key
                raise RuntimeError(f"{self._differs} in {name}")
        # Weights are compared by the way that they have moved. A step is small beside a weight, so that weights
        # themselves would be close even where the step is wrong.
        number = len(self._before)
        wanted = plain.written[:number]
        moved = found.written[:number]
        if _distance(moved, wanted) > _FAR * _distance(self._before, wanted):
            raise RuntimeError(f"{self._differs} in how weights have moved")
        self._before = []


@final
class GraphedUpdate(Graphed):
    """An update of an agent as a function of a batch, see `Graphed`.

    Targets that follow by the number of the update do so outside of the graph.
    """

    def __call__(self, batch: TensorDictBase, update: int) -> dict[str, Tensor]:
        """Make an update, and write `td_error` (B, 1) into `batch`.

        Returns:
            Losses without gradients, as `Agent.losses`.
        """
        read = batch.select(*self.agent.batch_keys, strict=False)
        result = self._learn_by(read, [self._settings()])
        if not self.agent.targets_update_every_step:
            self.agent.update_targets(update)
        batch.set("td_error", result["td_error"])
        return dict(result["losses"].items())

    def _learn(self, data: TensorDictBase, plan: Iterable[Settings]) -> TensorDictBase:
        (settings,) = plan
        return self._update(data, settings)


@contextmanager
def _changed(groups: list[dict[str, object]], settings: Settings) -> Iterator[None]:
    """Give an optimizer's groups other settings for a while.

    They are such as learning rates that a graph reads, where schedules see and set numbers.
    """
    before = []
    for group, each in zip(groups, settings, strict=True):
        before.append({name: group[name] for name in each})
        group.update(each)
    try:
        yield
    finally:
        for group, each in zip(groups, before, strict=True):
            group.update(each)


def _distance(ones: list[Tensor], others: list[Tensor]) -> float:
    """Euclidean distance of two lists of weights."""
    squares = []
    for one, other in zip(ones, others, strict=True):
        difference = one.double() - other.double()
        squares.append(difference.square().sum())
    return float(torch.stack(squares).sum().sqrt())


def _without_rates(groups: Settings) -> Settings:
    """Settings of groups but their weights and learning rates."""
    return [_without_rate(group) for group in groups]


def _without_rate(group: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in group.items() if name not in ("params", "lr")}


@final
class GraphedLearning(Graphed):
    """All updates of a training step as one function, see `Graphed`.

    The graph makes the batches, too: for PPO values of states, advantages and the random order of each epoch, for
    replay learners the draws from the replay. Before a replay the schedule is stepped through all updates for their
    learning rates; where it changes other settings, a graph is made only if it changes them alike at every call. Of an
    agent whose targets follow by the number of the update none is made. A graph takes memory by the number of its
    operators, so with K.

    Args:
        agent, optimizer, max_grad_norm, losses, capture: As in `Graphed`.
        batches: Gives the batches of a rollout, (B,) each, K of them or more; it may neither change the rollout nor
            read the device back. The rest is not drawn.
        updates: K.
        schedule: Of the optimizer; None for none.
        learned: Called with each batch after its update, with `td_error` in it; None for nothing.
        also_written: Gives tensors that `batches` and `learned` change, such as priorities; None for none.
        numbers: Gives what losses and batches take for granted in a call, such as which updates have another loss; a
            graph is made anew where it changes. None for nothing.
        clips_together: Whether gradients of all groups are clipped together.

    Attributes:
        batches_seen: Batches of the last call; those of a graph hold other values after the next one.
    """

    instead = "updates are launched one by one"

    def __init__(
        self,
        agent: Learner,
        optimizer: Optimizer,
        max_grad_norm: float | None = None,
        *,
        batches: Batches,
        updates: int,
        schedule: LRScheduler | None = None,
        losses: Losses | None = None,
        learned: Callable[[TensorDictBase], None] | None = None,
        also_written: Callable[[], list[Tensor]] | None = None,
        numbers: Callable[[], object] | None = None,
        clips_together: bool = False,
        capture: Capture | None = None,
    ) -> None:
        super().__init__(agent, optimizer, max_grad_norm, updates=updates, losses=losses, capture=capture)
        self.batches = batches
        self.updates = updates
        self.schedule = schedule
        self.learned = learned
        self.also_written = also_written
        self.numbers = numbers
        self.clips_together = clips_together
        self.batches_seen: list[TensorDictBase] = []
        self._batches_of_graph: list[TensorDictBase] = []
        self.active = self.active and agent.targets_update_every_step

    def __call__(self, data: TensorDictBase) -> list[dict[str, Tensor]]:
        """Update K times, and step the schedule as often.

        Returns:
            Losses of each update, without gradients.
        """
        if self.is_open and self.has_been_called:
            result = self._learn_by(data, self._planned())
        else:
            # In turn, since torch warns of a schedule that is stepped before its optimizer is.
            result = self._learn(data, self._in_turn())
            no_others: Settings = [{} for _ in self.optimizer.param_groups]
            self._note(data, self._fixed_in([no_others] * self.updates))
        losses = {name: values.unbind() for name, values in result["losses"].items()}
        return [dict(zip(losses, each, strict=True)) for each in zip(*losses.values(), strict=True)]

    def _learn(self, data: TensorDictBase, plan: Iterable[Settings]) -> TensorDictBase:
        losses = []
        seen = []
        with uncached_casts(self.device) if self.is_open else nullcontext():
            batches = iter(self.batches(data))
            for number, settings in enumerate(plan):
                if not isinstance(plan, list):
                    # The schedule has the rates only now.
                    self._put_rates([number])
                batch = next(batches)
                seen.append(batch)
                found = self._update(batch, settings)
                losses.append(found["losses"])
                if self.learned is not None:
                    errors = found.select("td_error", strict=False)
                    self.learned(batch.copy().update(errors))
        self.batches_seen = seen
        return TensorDict({"losses": torch.stack(losses)})

    def _numbers(self) -> object:
        return None if self.numbers is None else self.numbers()

    def _made(self, data: TensorDictBase) -> Recorded:
        recorded = super()._made(data)
        self._batches_of_graph = self.batches_seen
        return recorded

    def _replayed(self, recorded: Recorded, data: TensorDictBase) -> TensorDictBase:
        self.batches_seen = self._batches_of_graph
        return super()._replayed(recorded, data)

    def _written(self) -> list[Tensor]:
        also = [] if self.also_written is None else self.also_written()
        return [*super()._written(), *also]

    def _planned(self) -> list[Settings]:
        """Settings of all updates, beside those that the optimizer has behind the last."""
        groups = self.optimizer.param_groups
        # A schedule changes the groups as it goes: what they hold at each update is copied before its next step.
        in_turn = [_filled(groups, settings) for settings in self._in_turn()]
        return [_unlike_all(groups, settings) for settings in in_turn]

    def _in_turn(self) -> Iterator[Settings]:
        for update in range(self.updates):
            yield self._settings(update)
            if self.schedule is not None:
                self.schedule.step()


def _filled(groups: list[dict[str, object]], settings: Settings) -> Settings:
    return [{**group, **each} for group, each in zip(groups, settings, strict=True)]


def _unlike_all(groups: list[dict[str, object]], settings: Settings) -> Settings:
    return [_unlike(group, each) for group, each in zip(groups, settings, strict=True)]


def _unlike(group: dict[str, object], settings: dict[str, object]) -> dict[str, object]:
    others = _without_rate(settings)
    changed = {name: value for name, value in others.items() if value != group[name]}
    return {"lr": settings["lr"], **changed}
