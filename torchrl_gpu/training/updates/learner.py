"""What graphs of updates learn: the protocol, and a learner of any module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, final

from tensordict import NestedKey, TensorDictBase
from torch import Tensor, nn

Losses = Callable[[TensorDictBase], dict[str, Tensor]]


class Learner(Protocol):
    """What graphs update: an `Agent`, or what has its losses and weights."""

    @property
    def training(self) -> bool:
        """Whether it is in training mode."""

    @property
    def parameters_to_train(self) -> list[Tensor]:
        """Weights that the optimizer moves."""

    @property
    def targets_update_every_step(self) -> bool:
        """Whether `update_targets` does the same at every update number."""

    @property
    def batch_keys(self) -> list[NestedKey]:
        """Keys that `losses` reads from a batch, where present."""

    def losses(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """Scalars by name, whose sum has the gradients.

        `td_error`, if any, is written into the batch.
        """

    def update_targets(self, update: int) -> None:
        """Move targets after update number `update`."""

    def state_dict(self) -> dict[str, object]:
        """All that an update changes, but the optimizer's state."""


@final
class ModuleLearner:
    """A `Learner` of a module by any loss.

    Args:
        module: Has all that an update changes, besides the optimizer's state.
        losses: Scalars by name; those that are no loss must be detached.
        follow: Moves targets after each update; None where there are none.
        others: More modules that an update changes, such as targets.
    """

    targets_update_every_step = True
    # An attribute of the class, as the protocol has it.
    batch_keys: list[NestedKey] = []  # noqa: RUF012

    def __init__(
        self,
        module: nn.Module,
        losses: Losses,
        follow: Callable[[], None] | None = None,
        others: Sequence[nn.Module] = (),
    ) -> None:
        self.module = module
        self.losses = losses
        self._follow = follow
        self._others = others

    @property
    def training(self) -> bool:
        return self.module.training

    @property
    def parameters_to_train(self) -> list[Tensor]:
        return list(self.module.parameters())

    def update_targets(self, update: int) -> None:
        if self._follow is not None:
            self._follow()

    def state_dict(self) -> dict[str, object]:
        state = dict(self.module.state_dict())
        for number, each in enumerate(self._others):
            state |= {f"{number}.{name}": value for name, value in each.state_dict().items()}
        return state
