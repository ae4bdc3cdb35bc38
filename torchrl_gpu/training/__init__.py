"""Training as Lightning modules."""

from torchrl_gpu.training.data import Episodes
from torchrl_gpu.training.hierarchical import HierarchicalPacking
from torchrl_gpu.training.navigation import Navigation
from torchrl_gpu.training.navigation_data import NavigationWorlds
from torchrl_gpu.training.packing_data import PackingEpisodes
from torchrl_gpu.training.q_learning import QLearning

__all__ = ["Episodes", "HierarchicalPacking", "Navigation", "NavigationWorlds", "PackingEpisodes", "QLearning"]
