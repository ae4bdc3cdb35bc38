"""Training of packing policies by what they pack.

Here learn tables, placement values, and a manager with a worker. Not here: packing policies learned as any other, by
`OffPolicy` and `OnPolicy`. Read `afterstates` first.
"""

from torchrl_gpu.training.packing.afterstates import AfterstateLearning
from torchrl_gpu.training.packing.episodes import PackingEpisodes
from torchrl_gpu.training.packing.evolution import PlacementEvolution
from torchrl_gpu.training.packing.hierarchical import HierarchicalPacking

__all__ = ["AfterstateLearning", "HierarchicalPacking", "PackingEpisodes", "PlacementEvolution"]
