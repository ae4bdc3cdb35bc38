"""Agents, networks, and trained policies by themselves, all over TensorDicts.

Training is in `training`, environments in `envs`. Read `spaces.py` first (what an agent sees and does), then
`agents/base.py` and `wrapper.py` (how an agent acts in an environment), then `loading.py`.
"""

from torchrl_gpu.policies.agents import ACIQN, DDPG, DQN, IQN, PPO, SAC, Agent, Rainbow
from torchrl_gpu.policies.cloning import BCPolicy, ClonedChoice
from torchrl_gpu.policies.encoders.from_clips import FromClips
from torchrl_gpu.policies.encoders.r3d import R3D18
from torchrl_gpu.policies.encoders.settings import ClipEncoder
from torchrl_gpu.policies.encoders.simple import Simple2DCNN, Simple3DCNN
from torchrl_gpu.policies.encoders.timesformer import TimeSformer
from torchrl_gpu.policies.exploration import EpsilonGreedy
from torchrl_gpu.policies.export.exporter import export_policy
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.policies.loading import load_policy
from torchrl_gpu.policies.marine import (
    NavigationActor,
    NavigationAtoms,
    NavigationCritic,
    NavigationGaussian,
    NavigationQuantileCritic,
    NavigationQuantiles,
    NavigationScores,
    NavigationValue,
)
from torchrl_gpu.policies.networks.vectors import VectorActor, VectorCritic, VectorGaussian, VectorScores, VectorValue
from torchrl_gpu.policies.packing import (
    PackingPolicy,
    PatchTables,
    PlacementAtoms,
    PlacementLogits,
    PlacementQuantiles,
    PlacementScores,
    PlacementValue,
    RefinedTables,
)
from torchrl_gpu.policies.registry import register
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.targets import PeriodicTargets, SoftTargets
from torchrl_gpu.policies.wrapper import PolicyWrapper

__all__ = [
    "ACIQN",
    "DDPG",
    "DQN",
    "IQN",
    "PPO",
    "R3D18",
    "SAC",
    "Agent",
    "AgentSpace",
    "BCPolicy",
    "ClipEncoder",
    "ClonedChoice",
    "EpsilonGreedy",
    "FromClips",
    "InferencePolicy",
    "NavigationActor",
    "NavigationAtoms",
    "NavigationCritic",
    "NavigationGaussian",
    "NavigationQuantileCritic",
    "NavigationQuantiles",
    "NavigationScores",
    "NavigationValue",
    "PackingPolicy",
    "PatchTables",
    "PeriodicTargets",
    "PlacementAtoms",
    "PlacementLogits",
    "PlacementQuantiles",
    "PlacementScores",
    "PlacementValue",
    "PolicyWrapper",
    "Rainbow",
    "RefinedTables",
    "Simple2DCNN",
    "Simple3DCNN",
    "SoftTargets",
    "TimeSformer",
    "VectorActor",
    "VectorCritic",
    "VectorGaussian",
    "VectorScores",
    "VectorValue",
    "export_policy",
    "load_policy",
    "register",
]
