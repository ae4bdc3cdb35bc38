"""An actor over implicit quantile networks."""

from __future__ import annotations

from typing import cast, final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.envs import EnvBase

from torchrl_gpu.policies.agents.base import Agent, NetworkFactory, check_penalty, check_targets
from torchrl_gpu.policies.agents.shapes import check_shapes
from torchrl_gpu.policies.entry import Entry
from torchrl_gpu.policies.exploration import UniformEpsilonGreedy
from torchrl_gpu.policies.losses import discounted, quantile_huber, weighted_mean
from torchrl_gpu.policies.losses.quantile import quantile_error
from torchrl_gpu.policies.risk import Risk, RiskLevel
from torchrl_gpu.policies.spaces import in_keys
from torchrl_gpu.policies.squashing import DeterministicActor, Squash, Squashing
from torchrl_gpu.policies.targets import Targets, fixed, target_of


@final
class ACIQN(Agent):
    """A critic learns quantiles of what actions are worth; a deterministic actor climbs those up to a level of risk.

    Lin, Szenher, Huang, Englot, "Distributional Reinforcement Learning Based Integrated Decision Making and Control for
    Autonomous Surface Vehicles", RA-L 10(2), 2025: DDPG whose critic is an IQN (Dabney et al., ICML 2018). `td_error`
    is the mean distance of quantiles from targets.

    Departs from the paper: the actor may climb a conditional value at risk instead of the mean; acting then needs no
    level, as the actor has learnt it.

    Args:
        env: The environment to act in; its action is bounded.
        actor: Makes the actor's network: `forward` takes the entries named by its `in_keys` and gives real numbers
            (…, D) float32, which are then squashed into the bounds.
        critic: Makes the critic: `forward` takes the entries named by its `in_keys`, then actions (…, D), then τ
            (…, U), and gives quantiles (…, U) float32.
        num_taus: τ drawn for each state, in the critic's prediction, its target and the actor's loss alike.
        kappa: Errors up to which the critic's loss is quadratic.
        cvar: Level of the conditional value at risk that the actor climbs; "adaptive" takes it from `clearance`, which
            batches must then hold.
        cvar_distance: Clearance from which on the adaptive level is 1, metres.
        squash: How the actor is kept within the bounds. Behind tanh, one that an early critic has driven to a bound
            hardly ever comes back.
        saturation_penalty: What the squares of the actor's numbers cost before they are squashed: it keeps them where
            the squashing still has a slope.
        gamma: Discount of a step.
        n_steps: Rewards summed before bootstrapping.
        tau: Share of the online weights that the targets take at each update; None for hard updates.
        target_period: Updates between hard updates, where `tau` is None.
        epsilon_start: Exploration at the first frame.
        epsilon_end: Exploration after `epsilon_frames`.
        epsilon_frames: Frames, over all environments, of the linear decay.
        upstream_compat: Nothing is bootstrapped behind a time limit.
    """

    def __init__(
        self,
        env: EnvBase,
        *,
        actor: NetworkFactory,
        critic: NetworkFactory,
        num_taus: int = 8,
        kappa: float = 1.0,
        cvar: Risk = 1.0,
        cvar_distance: float = 10.0,
        squash: Squashing = "atan",
        saturation_penalty: float = 0.0,
        gamma: float = 0.99,
        n_steps: int = 1,
        tau: float | None = 0.005,
        target_period: int = 500,
        epsilon_start: float = 1.0,
        epsilon_end: float = 0.05,
        epsilon_frames: int = 100_000,
        upstream_compat: bool = False,
    ) -> None:
        super().__init__(env, gamma=gamma, n_steps=n_steps, upstream_compat=upstream_compat)
        check_targets("ACIQN", tau, target_period)
        self.follows_alike = tau is not None
        check_penalty("ACIQN", saturation_penalty)
        if num_taus < 1 or kappa <= 0:
            raise ValueError(f"ACIQN: want num_taus of at least 1 and a kappa above 0; got {num_taus}, {kappa}")
        act, self.critic = actor(env), critic(env)
        for network in (act, self.critic):
            self.space.check("ACIQN", network, discrete=False)
        action = self.space.action_shape
        check_shapes("ACIQN", self.space, act, gives=[action])
        check_shapes("ACIQN", self.space, self.critic, gives=[(num_taus,)], takes=[action, (num_taus,)])
        self.num_taus, self.kappa, self.saturation_penalty = num_taus, kappa, saturation_penalty
        self.risk = RiskLevel(cvar, cvar_distance).check("ACIQN", self.space)
        bounded = DeterministicActor(act, Squash(*self.space.bounds, squash))
        self.policy = Entry("action", bounded)
        self.exploration = UniformEpsilonGreedy(*self.space.bounds, epsilon_start, epsilon_end, epsilon_frames)
        self.target_actor, self.target_critic = target_of(bounded), target_of(self.critic)
        pairs: list[tuple[nn.Module, nn.Module]] = [(bounded, self.target_actor), (self.critic, self.target_critic)]
        self._targets = Targets(pairs, tau, target_period)

    @property
    def observations(self) -> list[str]:
        """What batches must hold of a state, and of the one that follows."""
        return [*super().observations, *self.risk.in_keys]

    @property
    def actor(self) -> DeterministicActor:
        """The actor that learns."""
        return cast("DeterministicActor", self.policy.module)

    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        seen, taus = _seen(self.critic, batch), self._drawn(batch)
        values = self.critic(*seen, batch["action"], taus)
        z = self.actor.network(*_seen(self.actor, batch))
        worth = fixed(self.critic, *seen, self.actor.squash(z), self.risk(batch) * self._drawn(batch)).mean(-1)
        wanted = self._wanted(batch)
        losses = {
            "critic": weighted_mean(quantile_huber(values, taus, wanted, self.kappa), batch),
            "actor": weighted_mean(self.saturation_penalty * z.square().sum(-1) - worth, batch),
        }
        return losses, quantile_error(values, wanted)

    @torch.no_grad()
    def _wanted(self, batch: TensorDictBase) -> Tensor:
        """Samples (B, U) of the return from each transition on, by the target networks."""
        after = batch["next"]
        action = self.target_actor(*_seen(self.target_actor, after))
        values = self.target_critic(*_seen(self.target_critic, after), action, self._drawn(after))
        return discounted(batch, values, self.gamma, self.stop)

    def _drawn(self, batch: TensorDictBase) -> Tensor:
        return torch.rand(len(batch), self.num_taus, device=self.risk.level.device)

    def _follow(self, update: int) -> None:
        self._targets.follow(update)

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        """Online weights of critic and actor."""
        return {"critic": list(self.critic.parameters()), "actor": list(self.policy.parameters())}


def _seen(network: nn.Module, batch: TensorDictBase) -> list[Tensor]:
    return [batch[key] for key in in_keys(network)]
