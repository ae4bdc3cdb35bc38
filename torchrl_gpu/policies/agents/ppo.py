"""Proximal policy optimization (PPO)."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_gpu.policies.actors import CategoricalActor, Squash, SquashedGaussianActor, Squashing
from torchrl_gpu.policies.agents.base import Agent, NetworkFactory
from torchrl_gpu.policies.losses import Total, clipped_surrogate, generalized_advantage, standardized, weighted_mean
from torchrl_gpu.policies.spaces import AgentSpace, end_without_actions, in_keys, observed
from torchrl_gpu.policies.weights import register_settings
from torchrl_gpu.system import arguments
from torchrl_gpu.system.tracing import is_traced

# Rows at a time on a CPU: what lies between layers then stays in its cache.
_BLOCK = 1024


@final
class PPO(Agent):
    """PPO agent: clipped surrogate for the actor, and a critic of state values.

    Schulman et al., "Proximal Policy Optimization Algorithms", 2017, with generalised advantage estimates. It learns
    from trajectories without replay: `estimate` values a rollout once, `losses` are of minibatches of it. TorchRL's
    `ClipPPOLoss` reads the device back at every call; ours is tested against it. `td_error` is that of the critic.

    Departs from the paper: advantages are standardised over the whole rollout, actor and critic share no weights,
    masks apply in the distribution, continuous actions are squashed into their bounds.

    Args:
        space: What it observes and does; its action is an index or bounded.
        actor: Makes the actor's network: `forward` takes the entries named by its `in_keys` and gives logits (…, A), or
            mean and logarithm of the standard deviation of a continuous action before it is squashed, (…, D) each.
        critic: Makes the critic: `forward` takes the entries named by its `in_keys` and gives values (…, 1) float32.
        gamma: Discount of a step.
        lam: λ of the advantages.
        clip: How far the ratio of probabilities may leave 1 before nothing is gained.
        entropy_coeff: Weight of the entropy in the actor's loss.
        squash: How a continuous action is kept within its bounds.
    """

    # `estimate` would need the encoder's gradients too.
    discrete: ClassVar[bool | None] = None
    teaches_encoders: ClassVar = False
    learns_from_replay: ClassVar = False

    def __init__(
        self,
        space: AgentSpace,
        *,
        actor: NetworkFactory,
        critic: NetworkFactory,
        gamma: float = 0.99,
        lam: float = 0.95,
        clip: float = 0.2,
        entropy_coeff: float = 0.01,
        squash: Squashing = "tanh",
    ) -> None:
        super().__init__(space, gamma=gamma, n_steps=1, exploration=None, targets=None)
        arguments.number("PPO", "lam", lam, 0, 1)
        arguments.number("PPO", "clip", clip, above=0)
        arguments.number("PPO", "entropy_coeff", entropy_coeff, 0)
        arguments.choice("PPO", "squash", squash, ("tanh", "atan"))
        if space.num_actions is not None:
            arguments.check_effect("PPO", "a continuous action", squash=(squash, "tanh"))
        self.lam = lam
        self.clip = clip
        self.entropy_coeff = entropy_coeff
        self.policy: CategoricalActor | SquashedGaussianActor
        if space.num_actions is None:
            network = self._check_network(actor(space), gives=[space.action_shape] * 2)
            self.policy = SquashedGaussianActor(network, Squash(*space.bounds, squash))
        else:
            network = self._check_network(actor(space), gives=[space.values_shape])
            self.policy = CategoricalActor(network, space.masked)
        self.critic = self._check_network(critic(space), gives=[(1,)])
        # Metrics are buffers that are written to in place: a CUDA graph replays at fixed addresses.
        register_settings(self, entropy=0.0, kl=0.0, clip_fraction=0.0)

    @property
    def observations(self) -> list[str]:
        of_actor = map(str, self.policy.in_keys)
        seen = [*of_actor, *in_keys(self.critic)]
        return list(dict.fromkeys(seen))

    @property
    def batch_keys(self) -> list[NestedKey]:
        return [*self.observations, *self.policy.out_keys, "advantage", "value_target", "priority_weight"]

    @property
    def metrics(self) -> dict[str, Tensor]:
        """Entropy, KL divergence and clipped share of the last minibatch.

        The divergence is that of the change of the policy by Schulman's estimate, nats.
        """
        return {name: getattr(self, name) for name in ("entropy", "kl", "clip_fraction")}

    @torch.no_grad()
    def estimate(self, steps: TensorDictBase, total: Total | None = None) -> TensorDictBase:
        """Advantages and value targets of a rollout, without a host read.

        Args:
            steps: (N, T) in order, each row one trajectory, with `observations` and what the policy wrote; in `next`,
                `observations`, `reward`, `done` and `terminated`, (…, 1); `active` (…, 1) if some do not count.
            total: As in `standardized`, over the rollouts of several processes.

        Returns:
            (N·T,) `batch_keys`: `advantage` (…, 1), standardised over all steps that count, and `value_target` (…, 1).
            If there is `active`, `priority_weight` (…) is 0 for steps that do not count.
        """
        # A state without a legal action ends the episode, as nothing can follow.
        after = end_without_actions(steps, self.space)["next"]
        value = self._values(steps)
        next_value = self._values(after)
        terminated = after["terminated"]
        advantage = generalized_advantage(
            after["reward"], value, next_value, terminated, after["done"], gamma=self.gamma, lam=self.lam
        )
        active: Tensor | None = steps.get("active", None)
        weight = None if active is None else active.float()
        out = steps.select(*self.batch_keys, strict=False)
        out["advantage"] = standardized(advantage, weight, total)
        out["value_target"] = advantage + value
        if weight is not None:
            out["priority_weight"] = weight[..., 0]
        return out.flatten()

    def _values(self, states: TensorDictBase) -> Tensor:
        """Values (N, T, 1) of states (N, T)."""
        inputs = [each.flatten(0, 1) for each in observed(self.critic, states)]
        # A GPU takes all rows at once, and a graph cannot loop over parts of unknown number.
        if is_traced() or inputs[0].device.type != "cpu":
            values = self.critic(*inputs)
        else:
            blocks = zip(*[each.split(_BLOCK) for each in inputs], strict=True)
            values = torch.cat([self.critic(*block) for block in blocks])
        return values.view(*states.shape, 1)

    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        log_prob, entropy = self.policy.evaluate(batch)
        log_ratio = log_prob - batch["action_log_prob"]
        ratio = log_ratio.exp()
        # Both terms are means over the same rows, so that the coefficient of the entropy keeps its meaning with
        # weights.
        gain = clipped_surrogate(ratio, batch["advantage"][..., 0], self.clip)
        predicted = self.critic(*observed(self.critic, batch))
        error = predicted - batch["value_target"]
        actor_loss = -gain - self.entropy_coeff * entropy
        losses = {"critic": weighted_mean(error[..., 0].square(), batch)}
        losses["actor"] = weighted_mean(actor_loss, batch)
        with torch.no_grad():
            is_clipped = (ratio - 1).abs() > self.clip
            seen = {"entropy": entropy, "kl": ratio - 1 - log_ratio, "clip_fraction": is_clipped.float()}
            for name, each in seen.items():
                buffer: Tensor = getattr(self, name)
                buffer.copy_(weighted_mean(each, batch))
        return losses, error.abs()

    def _target_pairs(self) -> list[tuple[Tensor, Tensor]]:
        return []

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        return {"critic": list(self.critic.parameters()), "actor": list(self.policy.parameters())}
