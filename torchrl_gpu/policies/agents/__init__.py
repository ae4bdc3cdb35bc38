"""Agents, one final class in one file each: policy, losses and target updates.

Loss functions are in `policies/losses.py`, optimizers and replay in `training`. Read `base.py` first, then `dqn.py`.
"""

from torchrl_gpu.policies.agents.ac_iqn import ACIQN
from torchrl_gpu.policies.agents.base import Agent
from torchrl_gpu.policies.agents.ddpg import DDPG
from torchrl_gpu.policies.agents.dqn import DQN
from torchrl_gpu.policies.agents.iqn import IQN
from torchrl_gpu.policies.agents.ppo import PPO
from torchrl_gpu.policies.agents.rainbow import Rainbow
from torchrl_gpu.policies.agents.sac import SAC

__all__ = ["ACIQN", "DDPG", "DQN", "IQN", "PPO", "SAC", "Agent", "Rainbow"]
