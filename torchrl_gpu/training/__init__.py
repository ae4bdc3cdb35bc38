"""Training as Lightning modules, and building blocks for custom loops."""

from torchrl_gpu.training.agent_run import AgentRun
from torchrl_gpu.training.behaviour_cloning import BehaviourCloning
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.data.demonstrations import DemonstrationEpisodes
from torchrl_gpu.training.data.episodes import Episodes
from torchrl_gpu.training.marine import NavigationWorlds
from torchrl_gpu.training.off_policy import OffPolicy
from torchrl_gpu.training.on_policy import OnPolicy
from torchrl_gpu.training.packing import (
    AfterstateLearning,
    HierarchicalPacking,
    PackingEpisodes,
    PlacementEvolution,
)
from torchrl_gpu.training.replay.buffer import DeviceReplay, replay_buffer
from torchrl_gpu.training.replay.clips import ClipReplay
from torchrl_gpu.training.run import EnvRun, ReplayRun

__all__ = [
    "AfterstateLearning",
    "AgentRun",
    "BehaviourCloning",
    "ClipReplay",
    "DemonstrationEpisodes",
    "DeviceReplay",
    "EnvRun",
    "Episodes",
    "HierarchicalPacking",
    "NavigationWorlds",
    "OffPolicy",
    "OnPolicy",
    "PackingEpisodes",
    "PlacementEvolution",
    "ReplayRun",
    "Rollout",
    "replay_buffer",
]
