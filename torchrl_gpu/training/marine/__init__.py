"""Training of navigators: the worlds that they are evaluated in.

Not here: how they learn, which is `OffPolicy` and `OnPolicy`.
"""

from torchrl_gpu.training.marine.worlds import NavigationWorlds

__all__ = ["NavigationWorlds"]
