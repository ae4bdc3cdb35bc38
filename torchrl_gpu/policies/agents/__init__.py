"""Agents: each one final class that knows how to act, how wrong it was, and how its targets follow."""

from torchrl_gpu.policies.agents.dqn import DQN

__all__ = ["DQN"]
