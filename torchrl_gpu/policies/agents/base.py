"""What training modules and `PolicyWrapper` may ask of any agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn
from torchrl.envs import EnvBase

from torchrl_gpu.policies.agents.legal import end_without_actions
from torchrl_gpu.policies.exploration import EpsilonGreedy
from torchrl_gpu.policies.spaces import AgentSpace

NetworkFactory = Callable[[EnvBase], nn.Module]


class Agent(nn.Module, ABC):
    """An agent knows how to act, how wrong it was, and how its targets follow; the rest belongs to who trains it.

    An update is: `losses(batch)`, one backward pass (over their sum, or one each: every loss reaches the weights of its
    own group only), a step of the optimizers of `parameter_groups`, `follow(update)`. Entries stand at the root of
    every batch, whatever group the environment keeps them in; `PolicyWrapper` acts in that group.

    A subclass sets `policy`, which writes the greedy `action`, and `exploration`; and `follows_alike`, where `follow`
    does the same whatever the number of the update, so that a CUDA graph may hold it.

    Args:
        env: The environment to act in.
        gamma: Discount of a step.
        n_steps: Rewards summed before bootstrapping.
        upstream_compat: Whether defects of the published agents are kept; for comparison.
    """

    policy: TensorDictModuleBase
    exploration: EpsilonGreedy
    follows_alike: bool = False

    def __init__(self, env: EnvBase, *, gamma: float, n_steps: int, upstream_compat: bool = False) -> None:
        super().__init__()
        if not 0 < gamma <= 1 or n_steps < 1:
            raise ValueError(f"{self.name}: want 0 < gamma <= 1 and n_steps >= 1; got gamma {gamma}, n_steps {n_steps}")
        self.gamma, self.n_steps, self.upstream_compat = gamma, n_steps, upstream_compat
        self.space = AgentSpace.of(env)

    @property
    def name(self) -> str:
        """What messages and tables call the agent."""
        return type(self).__name__

    @property
    def observations(self) -> list[str]:
        """What batches must hold of a state, and of the one that follows."""
        return [str(key) for key in self.policy.in_keys]

    @property
    def stop(self) -> str:
        """The entry of `next` after which nothing is bootstrapped."""
        return "done" if self.upstream_compat else "terminated"

    @property
    def acting(self) -> nn.Module:
        """The exploring policy: writes `action`, at random with probability epsilon."""
        # Held outside the module: its weights are the policy's, and would be saved twice.
        if "explorer" not in self.__dict__:
            self.__dict__["explorer"] = TensorDictSequential(self.policy, self.exploration)
        return self.__dict__["explorer"]

    def anneal(self, frame: int) -> None:
        """Sets what depends on how many frames have been played."""
        self.exploration.anneal(frame)

    def losses(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """How wrong each group of parameters was on a batch of transitions.

        Of discrete agents: only actions of `action_mask` are bootstrapped, all of them where the environment has none;
        a state without a legal action has the value 0, whether it is terminated or not.

        Args:
            batch: Any batch shape, with `observations` and the `action`, a legal one; in `next` `observations`,
                `reward` (the return so far), `done` and `terminated`, (…, 1); `steps_to_next_obs` (…, 1) where returns
                have more than one step; optionally `priority_weight` (…), 0 for rows that do not count.

        Returns:
            A scalar for each name of `parameter_groups`; `td_error` (…, 1), the size of the error, is written into
            `batch`, for priorities.
        """
        torch.clear_autocast_cache()  # it may hold weights as they were before the last step
        rows = batch.exclude("td_error")  # TorchRL's losses write theirs into an old one, whatever its shape
        rows = rows if batch.ndim == 1 else rows.reshape(-1)
        losses, error = self._losses(end_without_actions(rows, self.space, self.stop))
        batch.set("td_error", error.detach().reshape(*batch.shape, 1))
        return losses

    def loss(self, batch: TensorDictBase) -> TensorDict:
        """`losses` and their sum, `loss`, whose gradient is that of each of them."""
        losses = self.losses(batch)
        return TensorDict({"loss": torch.stack(list(losses.values())).sum(), **losses})

    @abstractmethod
    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        """Losses of a batch (B,), and the size of the error, (B,) or (B, 1)."""

    def follow(self, update: int) -> None:
        """Moves the targets after update number `update`, the first being 1."""
        self._follow(update)
        torch.clear_autocast_cache()

    @abstractmethod
    def _follow(self, update: int) -> None:
        """As `follow`."""

    @property
    @abstractmethod
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        """Weights to train, by the loss that trains them."""

    @property
    def parameters_to_train(self) -> list[Tensor]:
        """All weights to train."""
        return [weight for group in self.parameter_groups.values() for weight in group]


def check_targets(agent: str, tau: float | None, target_period: int) -> None:
    """ValueError unless targets can follow."""
    if (tau is not None and not 0 < tau <= 1) or target_period < 1:
        raise ValueError(
            f"{agent}: want 0 < tau <= 1, or None with a target_period of at least 1; got tau {tau}, target_period"
            f" {target_period}"
        )


def check_penalty(agent: str, saturation_penalty: float) -> None:
    """ValueError unless it can be a cost."""
    if saturation_penalty < 0:
        raise ValueError(f"{agent}: want a saturation_penalty of at least 0; got {saturation_penalty}")
