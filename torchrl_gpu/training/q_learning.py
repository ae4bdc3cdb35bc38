"""Q-learning for packing."""

from __future__ import annotations

from torch import nn
from torchrl.envs import EnvBase

from torchrl_gpu.training.off_policy import AgentFactory, OffPolicy

__all__ = ["AgentFactory", "QLearning"]


class QLearning(OffPolicy):
    """Trains an agent with discrete actions to fill bins; arguments are those of `OffPolicy`."""

    counted = ("utilization",)

    def policy_for(self, env: EnvBase) -> nn.Module:  # type: ignore[override]  # greedy whatever the mode
        """The agent's greedy policy, which is the same in every environment."""
        return self.agent.policy
