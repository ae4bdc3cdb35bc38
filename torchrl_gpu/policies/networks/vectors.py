"""Networks for environments that are seen as vectors of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torchrl.modules import MLP

from torchrl_gpu.policies.spaces import AgentSpace


@final
class VectorScores(nn.Module):
    """Values of all actions from observations that are vectors, by a perceptron with hidden layers.

    Args:
        space: What the agent observes and does; its action is discrete.
        observations: Names of the vectors, joined in this order; None for every observation (D,) of real numbers.
        hidden: Widths of the hidden layers.
    """

    def __init__(
        self, space: AgentSpace, observations: Sequence[str] | None = None, hidden: Sequence[int] = (64, 64)
    ) -> None:
        super().__init__()
        vectors = [name for name, (shape, dtype) in space.observations.items() if len(shape) == 1 and "float" in dtype]
        self.in_keys = list(vectors if observations is None else observations)
        if not self.in_keys or not set(self.in_keys) <= set(vectors):
            raise ValueError(
                f"VectorScores: want observations among the vectors of real numbers of {space.source},"
                f" {', '.join(vectors) or '(none)'}; got {', '.join(self.in_keys) or 'none'}"
            )
        width = sum(space.size_of(name) for name in self.in_keys)
        self.net = MLP(width, *space.values_shape, num_cells=list(hidden))

    def forward(self, *vectors: Tensor) -> Tensor:
        """Values (…, A) float32 of vectors (…, D) each."""
        return self.net(torch.cat(vectors, -1))
