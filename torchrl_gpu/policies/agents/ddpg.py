"""Deterministic policy gradients."""

from __future__ import annotations

from typing import cast, final

from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.objectives import DDPGLoss, HardUpdate, SoftUpdate

from torchrl_gpu.policies.agents.base import Agent, NetworkFactory, check_penalty, check_targets
from torchrl_gpu.policies.agents.shapes import check_shapes
from torchrl_gpu.policies.entry import Entry
from torchrl_gpu.policies.exploration import UniformEpsilonGreedy
from torchrl_gpu.policies.losses import weighted_mean
from torchrl_gpu.policies.squashing import DeterministicActor, Squash, Squashing


@final
class DDPG(Agent):
    """A critic learns what actions are worth, an actor climbs it.

    Lillicrap et al., ICLR 2016. The losses are TorchRL's. Departs from the paper: exploration draws uniform actions
    with probability epsilon, as the published navigation agents do, where the paper adds correlated noise; Huber loss.

    Args:
        env: The environment to act in; its action is bounded.
        actor: Makes the actor's network: `forward` takes the entries named by its `in_keys` and gives real numbers
            (…, D) float32, which are then squashed into the bounds.
        critic: Makes the critic: `forward` takes the entries named by its `in_keys` and then actions, and gives
            values (…, 1) float32.
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
        check_targets("DDPG", tau, target_period)
        check_penalty("DDPG", saturation_penalty)
        self.saturation_penalty = saturation_penalty
        self.follows_alike = tau is not None
        act, judge = actor(env), critic(env)
        for network in (act, judge):
            self.space.check("DDPG", network, discrete=False)
        action = self.space.action_shape
        check_shapes("DDPG", self.space, act, gives=[action])
        check_shapes("DDPG", self.space, judge, gives=[(1,)], takes=[action])
        bounded = DeterministicActor(act, Squash(*self.space.bounds, squash))
        value = Entry("state_action_value", judge, ["action"])
        self.policy = Entry("action", bounded)
        self.exploration = UniformEpsilonGreedy(*self.space.bounds, epsilon_start, epsilon_end, epsilon_frames)
        self.objective = DDPGLoss(self.policy, value, loss_function="smooth_l1", delay_actor=True, delay_value=True)
        self.objective.set_keys(terminated=self.stop)
        self.objective.make_value_estimator(gamma=gamma)
        hard = HardUpdate(self.objective, value_network_update_interval=0)
        self._targets = hard if tau is None else SoftUpdate(self.objective, tau=tau)
        self._target_period = target_period if tau is None else 1

    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        out = self.objective(batch)
        losses = {"critic": out["loss_value"], "actor": out["loss_actor"] + self._saturation(batch)}
        return losses, out["td_error"].sqrt()  # squared by TorchRL

    def _saturation(self, batch: TensorDictBase) -> Tensor | float:
        if not self.saturation_penalty:
            return 0.0
        actor = cast("DeterministicActor", self.policy.module)
        z = actor.network(*(batch[key] for key in actor.in_keys))
        return self.saturation_penalty * weighted_mean(z.square().sum(-1), batch)

    def _follow(self, update: int) -> None:
        if update % self._target_period == 0:
            self._targets.step()

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        """Online weights of critic and actor."""
        return {
            "critic": list(self.objective.value_network_params.parameters()),
            "actor": list(self.objective.actor_network_params.parameters()),
        }
