"""Deep deterministic policy gradient (DDPG)."""

from __future__ import annotations

from typing import ClassVar, cast, final

from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives import DDPGLoss, HardUpdate

from torchrl_gpu.policies.actors import DeterministicActor, Squash, Squashing
from torchrl_gpu.policies.agents.base import Agent, NetworkFactory
from torchrl_gpu.policies.exploration import EpsilonGreedy
from torchrl_gpu.policies.losses import weighted_mean
from torchrl_gpu.policies.policy import Entry
from torchrl_gpu.policies.spaces import AgentSpace, observed
from torchrl_gpu.policies.targets import SoftTargets, TargetUpdate, forget_settings, loss_pairs
from torchrl_gpu.system import arguments


@final
class DDPG(Agent):
    """DDPG agent: a deterministic actor trained on the gradient of a Q-value critic.

    Lillicrap et al., ICLR 2016. The losses are TorchRL's. Departs from the paper: exploration draws uniform actions
    with probability epsilon, as the published navigation agents do, where the paper adds correlated noise; Huber loss.

    Args:
        space: Its action is bounded.
        actor: Makes the actor's network: `forward` takes the entries named by its `in_keys` and gives real numbers
            (…, D) float32, which are then squashed into the bounds.
        critic: Makes the critic: `forward` takes the entries named by its `in_keys` and then actions, and gives
            values (…, 1) float32.
        squash: How the actor is kept within the bounds. Behind tanh, one that an early critic has driven to a bound
            hardly ever comes back.
        saturation_penalty: What the squares of the actor's numbers cost before they are squashed: it keeps them where
            the squashing still has a slope.
        gamma, n_steps, exploration, targets: As in `Agent`.
    """

    discrete: ClassVar = False
    # TorchRL's loss takes observations as given.
    teaches_encoders: ClassVar = False

    def __init__(
        self,
        space: AgentSpace,
        *,
        actor: NetworkFactory,
        critic: NetworkFactory,
        squash: Squashing = "atan",
        saturation_penalty: float = 0.0,
        gamma: float = 0.99,
        n_steps: int = 1,
        exploration: EpsilonGreedy | None = EpsilonGreedy(),
        targets: TargetUpdate = SoftTargets(),
    ) -> None:
        super().__init__(space, gamma=gamma, n_steps=n_steps, exploration=exploration, targets=targets)
        self.saturation_penalty = arguments.number("DDPG", "saturation_penalty", saturation_penalty, 0)
        action = space.action_shape
        act = self._check_network(actor(space), gives=[action])
        value = self._check_network(critic(space), gives=[(1,)], takes=[action])
        # TorchRL's loss looks for this name.
        critic_module = Entry("state_action_value", value, ["action"])
        into_bounds = Squash(*space.bounds, squash)
        self.policy = Entry("action", DeterministicActor(act, into_bounds))
        self.objective = DDPGLoss(
            self.policy, critic_module, loss_function="smooth_l1", delay_actor=True, delay_value=True
        )
        self.objective.make_value_estimator(gamma=gamma)
        forget_settings(self.objective, actor_network=self.policy, value_network=critic_module)
        # Without an updater TorchRL warns.
        HardUpdate(self.objective)

    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        out = self.objective(batch)
        losses = {"critic": out["loss_value"], "actor": out["loss_actor"]}
        if self.saturation_penalty:
            actor = cast("DeterministicActor", self.policy.module)
            z = actor.network(*observed(actor, batch))
            penalty = weighted_mean(z.square().sum(-1), batch)
            losses["actor"] = losses["actor"] + self.saturation_penalty * penalty
        # TorchRL's error is squared.
        return losses, out["td_error"].sqrt()

    def _target_pairs(self) -> list[tuple[Tensor, Tensor]]:
        return loss_pairs(self.objective, "actor_network", "value_network")

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        critic = self.objective.value_network_params
        actor = self.objective.actor_network_params
        return {"critic": list(critic.parameters()), "actor": list(actor.parameters())}
