"""AC-IQN: an actor-critic whose critic is an implicit quantile network."""

from __future__ import annotations

from typing import ClassVar, cast, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.policies.actors import DeterministicActor, Squash, Squashing
from torchrl_gpu.policies.agents.base import Agent, NetworkFactory
from torchrl_gpu.policies.exploration import EpsilonGreedy
from torchrl_gpu.policies.losses import discounted, quantile_error, quantile_huber, weighted_mean
from torchrl_gpu.policies.policy import Entry
from torchrl_gpu.policies.risk import Risk, RiskLevel
from torchrl_gpu.policies.spaces import AgentSpace, detached, observed
from torchrl_gpu.policies.targets import SoftTargets, TargetUpdate, fixed, target_of, weight_pairs
from torchrl_gpu.system import arguments


@final
class ACIQN(Agent):
    """AC-IQN agent: a deterministic actor on an implicit quantile critic.

    The actor maximises the mean, or the conditional value at risk, of the critic's quantiles.

    Lin, Szenher, Huang, Englot, "Distributional Reinforcement Learning Based Integrated Decision Making and Control for
    Autonomous Surface Vehicles", RA-L 10(2), 2025: DDPG whose critic is an IQN (Dabney et al., ICML 2018). `td_error`
    is the mean distance of quantiles from targets.

    Departs from the paper: the actor may climb a conditional value at risk instead of the mean; acting then needs no
    level, as the actor has learnt it.

    Args:
        space: Its action is bounded.
        actor: As in `DDPG`.
        critic: Makes the critic: `forward` takes the entries named by its `in_keys`, then actions (…, D), then τ
            (…, U), and gives quantiles (…, U) float32.
        num_taus: τ drawn for each state, in the critic's prediction, its target and the actor's loss alike.
        kappa: Errors up to which the critic's loss is quadratic.
        cvar: Level of the conditional value at risk that the actor climbs; "adaptive" takes it from `clearance`, which
            batches must then hold.
        cvar_distance: Clearance from which on the adaptive level is 1, metres.
        squash, saturation_penalty: As in `DDPG`.
        gamma, n_steps, exploration, targets: As in `Agent`.
    """

    discrete: ClassVar = False

    def __init__(
        self,
        space: AgentSpace,
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
        exploration: EpsilonGreedy | None = EpsilonGreedy(),
        targets: TargetUpdate = SoftTargets(),
    ) -> None:
        super().__init__(space, gamma=gamma, n_steps=n_steps, exploration=exploration, targets=targets)
        arguments.number("ACIQN", "saturation_penalty", saturation_penalty, 0)
        arguments.whole("ACIQN", "num_taus", num_taus, 1)
        arguments.number("ACIQN", "kappa", kappa, above=0)
        action = space.action_shape
        act = self._check_network(actor(space), gives=[action])
        taus = (num_taus,)
        takes = [action, taus]
        self.critic = self._check_network(critic(space), gives=[taus], takes=takes)
        self.num_taus = num_taus
        self.kappa = kappa
        self.saturation_penalty = saturation_penalty
        self.risk = RiskLevel(cvar, cvar_distance).check("ACIQN", space)
        into_bounds = Squash(*space.bounds, squash)
        self.policy = Entry("action", DeterministicActor(act, into_bounds))
        self.target_actor = target_of(self.actor)
        self.target_critic = target_of(self.critic)

    @property
    def observations(self) -> list[str]:
        return [*super().observations, *self.risk.in_keys]

    @property
    def actor(self) -> DeterministicActor:
        return cast("DeterministicActor", self.policy.module)

    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        observations = observed(self.critic, batch)
        taus = self._draw_taus(batch)
        values = self.critic(*observations, batch["action"], taus)
        # The penalty is on the numbers before they are squashed, so the actor is called in two parts.
        z = self.actor.network(*observed(self.actor, detached(batch)))
        # The actor's loss reaches the actor alone: the critic's weights and the observations are taken as given.
        given = [each.detach() for each in observations]
        action = self.actor.squash(z)
        risky_taus = self.risk(batch) * self._draw_taus(batch)
        value = fixed(self.critic, *given, action, risky_taus).mean(-1)
        td_target = self._td_target(batch)
        penalty = self.saturation_penalty * z.square().sum(-1)
        errors = quantile_huber(values, taus, td_target, self.kappa)
        critic_loss = weighted_mean(errors, batch)
        losses = {"critic": critic_loss, "actor": weighted_mean(penalty - value, batch)}
        return losses, quantile_error(values, td_target)

    @torch.no_grad()
    def _td_target(self, batch: TensorDictBase) -> Tensor:
        """Target networks' samples (B, U) of the return after each transition."""
        after = batch["next"]
        action = self.target_actor(*observed(self.target_actor, after))
        taus = self._draw_taus(after)
        values = self.target_critic(*observed(self.target_critic, after), action, taus)
        return discounted(batch, values, self.gamma)

    def _draw_taus(self, batch: TensorDictBase) -> Tensor:
        device = self.risk.level.device
        return torch.rand(len(batch), self.num_taus, device=device, dtype=torch.float32)

    def _target_pairs(self) -> list[tuple[Tensor, Tensor]]:
        return weight_pairs((self.actor, self.target_actor), (self.critic, self.target_critic))

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        return {"critic": list(self.critic.parameters()), "actor": list(self.policy.parameters())}
