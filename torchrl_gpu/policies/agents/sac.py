"""Soft actor-critic."""

from __future__ import annotations

import math
from typing import final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torchrl.envs import EnvBase

from torchrl_gpu.policies.agents.base import Agent, NetworkFactory, check_targets
from torchrl_gpu.policies.agents.shapes import check_shapes
from torchrl_gpu.policies.exploration import UniformEpsilonGreedy
from torchrl_gpu.policies.losses import discounted, weighted_mean
from torchrl_gpu.policies.spaces import in_keys
from torchrl_gpu.policies.squashing import GaussianActor, Squash, Squashing
from torchrl_gpu.policies.targets import Targets, fixed, target_of


@final
class SAC(Agent):
    """Two critics learn what actions and the entropy behind them are worth; the actor climbs the smaller, and entropy.

    Haarnoja et al., ICML 2018, and "Soft actor-critic algorithms and applications", 2018. TorchRL's `SACLoss` with its
    `TanhNormal` reads the device back at every call; ours is held to it by a test. `td_error` is the larger of the two.

    Departs from the papers: epsilon-greedy exploration can be added to sampling.

    Args:
        env: The environment to act in; its action is bounded.
        actor: Makes the actor's network: `forward` takes the entries named by its `in_keys` and gives mean and
            logarithm of the standard deviation, (…, D) float32, of what is then squashed into the bounds.
        critic: Makes a critic: `forward` takes the entries named by its `in_keys` and then actions, and gives values
            (…, 1) float32.
        squash: How the actor is kept within the bounds.
        alpha: What entropy is worth; the value at the start where `target_entropy` is given.
        target_entropy: Entropy that alpha is learnt to keep, nats; None leaves alpha.
        gamma: Discount of a step.
        n_steps: Rewards summed before bootstrapping.
        tau: Share of the online weights that the targets take at each update; None for hard updates.
        target_period: Updates between hard updates, where `tau` is None.
        epsilon_start: Exploration at the first frame.
        epsilon_end: Exploration after `epsilon_frames`.
        epsilon_frames: Frames, over all environments, of the linear decay.
        upstream_compat: Squashes by atan with the density of tanh, takes the next action from a target actor, samples
            when acting greedily too; nothing is bootstrapped behind a time limit.
    """

    def __init__(
        self,
        env: EnvBase,
        *,
        actor: NetworkFactory,
        critic: NetworkFactory,
        squash: Squashing = "tanh",
        alpha: float = 0.078,
        target_entropy: float | None = None,
        gamma: float = 0.99,
        n_steps: int = 1,
        tau: float | None = 0.005,
        target_period: int = 500,
        epsilon_start: float = 0.0,
        epsilon_end: float = 0.0,
        epsilon_frames: int = 100_000,
        upstream_compat: bool = False,
    ) -> None:
        super().__init__(env, gamma=gamma, n_steps=n_steps, upstream_compat=upstream_compat)
        check_targets("SAC", tau, target_period)
        self.follows_alike = tau is not None
        if alpha <= 0:
            raise ValueError(f"SAC: alpha must be above 0; got {alpha}")
        act, self.critics = actor(env), nn.ModuleList([critic(env), critic(env)])
        for network in (act, *self.critics):
            self.space.check("SAC", network, discrete=False)
        action = self.space.action_shape
        check_shapes("SAC", self.space, act, gives=[action, action])
        check_shapes("SAC", self.space, self.critics[0], gives=[(1,)], takes=[action])
        bounds = Squash(*self.space.bounds, "atan" if upstream_compat else squash)
        self.policy = GaussianActor(act, bounds, always_sampled=upstream_compat, tanh_density=upstream_compat)
        self.exploration = UniformEpsilonGreedy(*self.space.bounds, epsilon_start, epsilon_end, epsilon_frames)
        self.target_entropy = target_entropy
        self.log_alpha: Tensor
        log_alpha = torch.tensor(math.log(alpha))
        if target_entropy is None:
            self.register_buffer("log_alpha", log_alpha)
        else:
            self.log_alpha = nn.Parameter(log_alpha)
        self.target_critics = target_of(self.critics)
        self.target_policy = target_of(self.policy) if upstream_compat else None
        pairs: list[tuple[nn.Module, nn.Module]] = [(self.critics, self.target_critics)]
        if self.target_policy is not None:
            pairs.append((self.policy, self.target_policy))
        self._targets = Targets(pairs, tau, target_period)

    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        values = [critic(*self._seen(batch), batch["action"])[..., 0] for critic in self.critics]
        action, log_prob = self.policy.sample(batch)
        worth = torch.minimum(*(fixed(critic, *self._seen(batch), action)[..., 0] for critic in self.critics))
        wanted = self._wanted(batch)
        critic_loss = torch.stack([mse_loss(value, wanted, reduction="none") for value in values]).sum(0)
        actor_loss = self.log_alpha.exp().detach() * log_prob - worth
        losses = {"critic": weighted_mean(critic_loss, batch), "actor": weighted_mean(actor_loss, batch)}
        if self.target_entropy is not None:
            alpha_loss = -self.log_alpha * (log_prob.detach() + self.target_entropy)
            losses["alpha"] = weighted_mean(alpha_loss, batch)
        return losses, torch.maximum(*((value - wanted).abs() for value in values))

    @torch.no_grad()
    def _wanted(self, batch: TensorDictBase) -> Tensor:
        """Targets (B,): rewards, and the smaller of the target critics' values with the entropy behind."""
        after = batch["next"]
        action, log_prob = (self.target_policy or self.policy).sample(after)
        worth = torch.minimum(*(critic(*self._seen(after), action) for critic in self.target_critics))
        soft = worth - self.log_alpha.exp() * log_prob[..., None]
        return discounted(batch, soft, self.gamma, self.stop)[..., 0]

    def _seen(self, batch: TensorDictBase) -> list[Tensor]:
        return [batch[key] for key in in_keys(self.critics[0])]

    def _follow(self, update: int) -> None:
        self._targets.follow(update)

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        """Online weights of critics and actor, and alpha where it is learnt."""
        groups: dict[str, list[Tensor]] = {
            "critic": list(self.critics.parameters()),
            "actor": list(self.policy.parameters()),
        }
        return groups if self.target_entropy is None else {**groups, "alpha": [self.log_alpha]}
