"""Soft actor-critic (SAC)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from torchrl_gpu.policies.actors import GaussianActor, Squash, Squashing
from torchrl_gpu.policies.agents.base import Agent, NetworkFactory
from torchrl_gpu.policies.exploration import EpsilonGreedy
from torchrl_gpu.policies.losses import discounted, weighted_mean
from torchrl_gpu.policies.spaces import AgentSpace, detached, observed
from torchrl_gpu.policies.targets import SoftTargets, TargetUpdate, fixed, target_of, weight_pairs
from torchrl_gpu.policies.weights import float32, register_settings
from torchrl_gpu.system import arguments


@final
class SAC(Agent):
    """SAC agent: two soft Q-value critics, and an actor that climbs them.

    The actor maximises the smaller of the two values plus the entropy.

    Haarnoja et al., ICML 2018, and "Soft actor-critic algorithms and applications", 2018. TorchRL's `SACLoss` with its
    `TanhNormal` reads the device back at every call; ours is tested against it. `td_error` is the larger of the two.

    Departs from the papers: epsilon-greedy exploration can be added to sampling.

    Args:
        space: Its action is bounded.
        actor: Makes the actor's network: `forward` takes the entries named by its `in_keys` and gives mean and
            logarithm of the standard deviation, (…, D) float32, of what is then squashed into the bounds.
        critic: Makes a critic: `forward` takes the entries named by its `in_keys` and then actions, and gives values
            (…, 1) float32.
        squash: How the actor is kept within the bounds.
        alpha: Weight of entropy; the value at the start where `target_entropy` is given.
        target_entropy: Entropy that alpha is learnt to keep, nats; None leaves alpha.
        gamma, n_steps, exploration, targets: As in `Agent`.
    """

    discrete: ClassVar = False

    def __init__(
        self,
        space: AgentSpace,
        *,
        actor: NetworkFactory,
        critic: NetworkFactory,
        squash: Squashing = "tanh",
        alpha: float = 0.078,
        target_entropy: float | None = None,
        gamma: float = 0.99,
        n_steps: int = 1,
        exploration: EpsilonGreedy | None = None,
        targets: TargetUpdate = SoftTargets(),
    ) -> None:
        super().__init__(space, gamma=gamma, n_steps=n_steps, exploration=exploration, targets=targets)
        arguments.number("SAC", "alpha", alpha, above=0)
        arguments.optional(arguments.number, "SAC", "target_entropy", target_entropy)
        action = space.action_shape
        act = self._check_network(actor(space), gives=[action, action])
        critics = [self._check_network(critic(space), gives=[(1,)], takes=[action]) for _ in range(2)]
        self.critics = nn.ModuleList(critics)
        self.policy = GaussianActor(act, Squash(*space.bounds, squash))
        self.target_entropy = target_entropy
        self.log_alpha: Tensor
        if target_entropy is None:
            register_settings(self, log_alpha=math.log(alpha))
        else:
            self.log_alpha = nn.Parameter(float32(math.log(alpha)))
        self.target_critics = target_of(self.critics)

    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        # Both critics take the same observations, which are looked up once.
        observations = observed(self.critics[0], batch)
        values = [critic(*observations, batch["action"])[..., 0] for critic in self.critics]
        action, log_prob = self.policy.sample(detached(batch))
        # The actor's gradient must not reach the observations: features learn from the critics alone.
        given = [each.detach() for each in observations]
        actor_values = [fixed(critic, *given, action)[..., 0] for critic in self.critics]
        value = torch.minimum(*actor_values)
        td_target = self._td_target(batch)
        errors = [mse_loss(each, td_target, reduction="none") for each in values]
        critic_loss = torch.stack(errors).sum(0)
        # The weight of the entropy is taken as given here, and learned by a loss of its own.
        actor_loss = self.log_alpha.exp().detach() * log_prob - value
        losses = {"critic": weighted_mean(critic_loss, batch), "actor": weighted_mean(actor_loss, batch)}
        if self.target_entropy is not None:
            alpha_loss = -self.log_alpha * (log_prob.detach() + self.target_entropy)
            losses["alpha"] = weighted_mean(alpha_loss, batch)
        distances = [(each - td_target).abs() for each in values]
        return losses, torch.maximum(*distances)

    @torch.no_grad()
    def _td_target(self, batch: TensorDictBase) -> Tensor:
        """Targets (B,): reward plus the smaller target value with its entropy."""
        after = batch["next"]
        action, log_prob = self.policy.sample(after)
        values = [critic(*observed(critic, after), action) for critic in self.target_critics]
        value = torch.minimum(*values)
        # The value of a state is that of its actions plus the entropy of choosing among them.
        soft = value - self.log_alpha.exp() * log_prob[..., None]
        return discounted(batch, soft, self.gamma)[..., 0]

    def _target_pairs(self) -> list[tuple[Tensor, Tensor]]:
        return weight_pairs((self.critics, self.target_critics))

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        groups: dict[str, list[Tensor]] = {}
        groups["critic"] = list(self.critics.parameters())
        groups["actor"] = list(self.policy.parameters())
        return groups if self.target_entropy is None else {**groups, "alpha": [self.log_alpha]}

    @property
    def learned_settings(self) -> Sequence[str]:
        return () if self.target_entropy is None else ("alpha",)
