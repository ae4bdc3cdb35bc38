"""Networks for observations that are vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torchrl.modules import MLP

from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments


class _Vectors(nn.Module):
    """Base class of networks for vector observations: a perceptron.

    Args:
        space: What the agent observes and does.
        observations: Names of the vectors, joined in this order; None for every observation (D,) of real numbers.
        hidden: Widths of the hidden layers.
        layer_norm: Whether each hidden layer is normalised before its activation.
    """

    def __init__(
        self,
        space: AgentSpace,
        observations: Sequence[str] | None = None,
        hidden: Sequence[int] = (64, 64),
        *,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        vectors = [name for name, (shape, dtype) in space.observations.items() if len(shape) == 1 and "float" in dtype]
        self.in_keys = list(vectors if observations is None else observations)
        if not self.in_keys or not set(self.in_keys) <= set(vectors):
            raise ValueError(
                f"{type(self).__name__}: want observations among the vectors of real numbers of {space.source},"
                f" {', '.join(vectors) or '(none)'}; got {', '.join(self.in_keys) or 'none'}"
            )
        hidden = arguments.listed(type(self).__name__, "hidden", "a list of widths", hidden)
        hidden = [arguments.whole(type(self).__name__, "hidden", width, 1, 65_536) for width in hidden]
        norm = {"norm_class": nn.LayerNorm, "norm_kwargs": [{"normalized_shape": width} for width in hidden]}
        width = sum(space.size_of(name) for name in self.in_keys) + self._more_inputs(space)
        self.net = MLP(width, self._num_outputs(space), num_cells=list(hidden), **(norm if layer_norm else {}))

    def _more_inputs(self, space: AgentSpace) -> int:
        return 0

    def _num_outputs(self, space: AgentSpace) -> int:
        raise NotImplementedError


@final
class VectorScores(_Vectors):
    """Q-network over vector observations: values of all actions, by a perceptron with hidden layers."""

    def _num_outputs(self, space: AgentSpace) -> int:
        return space.values_shape[0]

    def forward(self, *vectors: Tensor) -> Tensor:
        """Values (…, A) float32 of vectors (…, D) each."""
        return self.net(torch.cat(vectors, -1)).float()


@final
class VectorActor(_Vectors):
    """Deterministic actor over vector observations: an action before it is squashed."""

    def _num_outputs(self, space: AgentSpace) -> int:
        return space.action_shape[0]

    def forward(self, *vectors: Tensor) -> Tensor:
        """Real numbers (…, D) float32 of vectors."""
        return self.net(torch.cat(vectors, -1)).float()


@final
class VectorGaussian(_Vectors):
    """Gaussian actor over vector observations: mean and log standard deviation of an action before it is squashed."""

    smallest, largest = -20.0, 2.0  # of the logarithm

    def _num_outputs(self, space: AgentSpace) -> int:
        return 2 * space.action_shape[0]

    def forward(self, *vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation, (…, D) float32 each, of vectors."""
        mean, log_std = self.net(torch.cat(vectors, -1)).float().chunk(2, -1)
        return mean, log_std.clamp(self.smallest, self.largest)


@final
class VectorValue(_Vectors):
    """State-value critic over vector observations."""

    def _num_outputs(self, space: AgentSpace) -> int:
        return 1

    def forward(self, *vectors: Tensor) -> Tensor:
        """Values (…, 1) float32 of vectors (…, D) each."""
        return self.net(torch.cat(vectors, -1)).float()


@final
class VectorCritic(_Vectors):
    """Q-value critic over vector observations."""

    def _more_inputs(self, space: AgentSpace) -> int:
        return space.action_shape[0]

    def _num_outputs(self, space: AgentSpace) -> int:
        return 1

    def forward(self, *inputs: Tensor) -> Tensor:
        """Values (…, 1) float32 of vectors, followed by actions (…, D)."""
        return self.net(torch.cat(inputs, -1)).float()
