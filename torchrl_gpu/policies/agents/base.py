"""`Agent`: interface of every agent to training modules and `PolicyWrapper`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from torchrl_gpu.policies.agents.shapes import Shape, check_network
from torchrl_gpu.policies.exploration import EpsilonGreedy, EpsilonGreedyModule
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.policies.risk import RiskLevel
from torchrl_gpu.policies.spaces import AgentSpace, end_without_actions
from torchrl_gpu.policies.targets import TargetUpdate
from torchrl_gpu.policies.weights import drop_settings
from torchrl_gpu.system import arguments
from torchrl_gpu.system.tracing import is_traced

NetworkFactory = Callable[[AgentSpace], nn.Module]


class Agent(nn.Module, ABC):
    """Base class of agents: policy, losses and target updates.

    All else belongs to the training module. An update is `losses(batch)`, one backward pass (over their sum, or one
    each: every loss reaches the weights of its own group only), a step of the optimizers of `parameter_groups`, and
    `update_targets(update)`. Entries stand at the root of every batch, whatever group the environment keeps them in;
    `PolicyWrapper` acts in that group.

    A subclass sets `policy`, which writes the greedy `action` and what else the agent computes for it.

    Args:
        space: What it observes and does.
        gamma: Discount of a step.
        n_steps: Rewards summed before bootstrapping.
        exploration: Epsilon-greedy, in addition to what its policy draws itself; None for no exploration.
        targets: How its target networks follow, softly (`tau`) or every few updates (`period`); None if it has none.

    Attributes:
        discrete: Whether its action is an index; None if either kind will do.
        teaches_encoders: Whether its first loss has a gradient by observations, which an encoder can learn from.
        learns_from_replay: Whether batches are transitions of any policy, or rollouts of the present one.
    """

    discrete: ClassVar[bool | None]
    teaches_encoders: ClassVar[bool] = True
    learns_from_replay: ClassVar[bool] = True

    policy: TensorDictModuleBase

    def __init__(
        self,
        space: AgentSpace,
        *,
        gamma: float,
        n_steps: int,
        exploration: EpsilonGreedy | None,
        targets: TargetUpdate | None,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        arguments.number(where, "gamma", gamma, 0, 1, above=0)
        arguments.whole(where, "n_steps", n_steps, 1)
        if not isinstance(exploration, EpsilonGreedy | None):
            arguments.refuse(where, "exploration", "an EpsilonGreedy or none", exploration)
        if not isinstance(targets, TargetUpdate | None):
            arguments.refuse(where, "targets", "SoftTargets, PeriodicTargets or none", targets)
        if self.discrete not in (None, space.num_actions is not None):
            kind = "discrete" if self.discrete else "continuous"
            raise ValueError(f"{self.name}: the action must be {kind}, and that of {space.source} is not")
        self.space = space
        self.gamma = gamma
        self.n_steps = n_steps
        self.targets = targets
        # Exploration is a module of its own, so that its epsilon moves with the agent and checkpoints hold it.
        self.exploration = None if exploration is None else EpsilonGreedyModule(exploration, space)
        # Checkpoints of older versions hold settings as weights: they are dropped before they are loaded.
        self.register_load_state_dict_pre_hook(drop_settings)

    @property
    def name(self) -> str:
        """Name of the agent in messages and tables."""
        return type(self).__name__

    @property
    def observations(self) -> list[str]:
        """Observations that a batch must hold, of the state and of the next state."""
        return [str(key) for key in self.policy.in_keys]

    @property
    def batch_keys(self) -> list[NestedKey]:
        """Keys that `losses` reads from a batch, where present."""
        seen = self.observations
        after = [("next", key) for key in (*seen, "reward", "done", "terminated")]
        return [*seen, "action", "steps_to_next_obs", "priority_weight", *after]

    @property
    def targets_update_every_step(self) -> bool:
        """Whether `update_targets` does the same at every update.

        A CUDA graph may then hold it.
        """
        return self.targets is None or self.targets.every_step

    @property
    def metrics(self) -> dict[str, Tensor]:
        """Scalars on the device to log with the losses."""
        return {} if self.exploration is None else {"epsilon": self.exploration.epsilon}

    @property
    def learned_settings(self) -> Sequence[str]:
        """Arguments that are only the first value of something learned.

        Checkpoints hold what has been learned.
        """
        return ()

    def anneal(self, frame: int) -> None:
        """Update schedules, such as epsilon, for the number of frames played."""
        if self.exploration is not None:
            self.exploration.anneal(frame)

    def policy_at(self, risk: RiskLevel) -> TensorDictModuleBase:
        """Greedy policy at another level of risk, over the same weights.

        ValueError if the agent's actions do not depend on risk.
        """
        raise ValueError(f"{self.name}: cvar {risk.cvar!r} needs an agent whose actions depend on it, such as IQN")

    def alternatives(self) -> Mapping[str, Policy]:
        """Other greedy policies over the same weights, by name, for result tables."""
        return {}

    def losses(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """Losses of a batch of transitions, one for each parameter group.

        A discrete agent bootstraps only from actions of `action_mask`, or from all if the environment has none. A state
        without a legal action has the value 0, whether it is terminated or not.

        Args:
            batch: Any batch shape, with `observations` and a legal `action`; in `next`, `observations`, `reward` (the
                return so far), `done` and `terminated`, (…, 1); `steps_to_next_obs` (…, 1) if returns have more than
                one step; optionally `priority_weight` (…), 0 for rows that do not count.

        Returns:
            A scalar for each name of `parameter_groups`. The size of the error, `td_error` (…, 1), is written into
            `batch` for priorities.
        """
        # The cache of autocast may hold weights as they were before the last step. torch 2.11 cannot trace the call.
        if not is_traced():
            torch.clear_autocast_cache()
        # TorchRL's losses write their errors into an old entry, whatever its shape.
        rows = batch.exclude("td_error")
        # Agents know one batch axis alone.
        rows = rows if batch.ndim == 1 else rows.reshape(-1)
        losses, error = self._losses(end_without_actions(rows, self.space))
        batch.set("td_error", error.detach().reshape(*batch.shape, 1))
        return losses

    def loss(self, batch: TensorDictBase) -> TensorDict:
        """`losses`, and their sum as `loss`, whose gradient is that of each of them."""
        losses = self.losses(batch)
        total = torch.stack(list(losses.values())).sum()
        return TensorDict({"loss": total, **losses})

    @abstractmethod
    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        """Losses of a batch (B,), and the size of the error, (B,) or (B, 1)."""

    @torch.no_grad()
    def update_targets(self, update: int) -> None:
        """Update the target networks after update number `update`, counted from 1."""
        if self.targets is not None:
            # All weights together, so that an update is one kernel and not one for each weight.
            online, targets = zip(*self._target_pairs(), strict=True)
            self.targets.update(online, targets, update)
            torch.clear_autocast_cache()

    @torch.no_grad()
    def reset_targets(self) -> None:
        """Copy the online weights into the targets, as at construction."""
        for online, target in self._target_pairs():
            target.copy_(online)

    @abstractmethod
    def _target_pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Pairs of an online weight and the target weight that follows it."""

    @property
    @abstractmethod
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        """Weights to train, by the loss that trains them."""

    @property
    def parameters_to_train(self) -> list[Tensor]:
        """Weights of all groups."""
        weights: list[Tensor] = []
        for group in self.parameter_groups.values():
            weights += group
        return weights

    def _check_network(self, network: nn.Module, gives: Sequence[Shape], takes: Sequence[Shape] = ()) -> nn.Module:
        check_network(self.name, self.space, network, gives, takes)
        return network
