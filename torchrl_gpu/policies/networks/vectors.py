"""Networks for observations that are vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torchrl.modules import MLP

from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments


class _Vectors(nn.Module, ABC):
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
        where = type(self).__name__
        vectors = [name for name, (shape, dtype) in space.observations.items() if len(shape) == 1 and "float" in dtype]
        self.in_keys = list(vectors if observations is None else observations)
        if not self.in_keys or not set(self.in_keys) <= set(vectors):
            raise ValueError(
                f"{where}: want observations among the vectors of real numbers of {space.source},"
                f" {', '.join(vectors) or '(none)'}; got {', '.join(self.in_keys) or 'none'}"
            )
        hidden = arguments.listed(where, "hidden", "a list of widths", hidden)
        hidden = [arguments.whole(where, "hidden", width, 1, 65_536) for width in hidden]
        norm = {"norm_class": nn.LayerNorm, "norm_kwargs": [{"normalized_shape": width} for width in hidden]}
        width = sum(space.size_of(name) for name in self.in_keys) + self._more_inputs(space)
        self.net = MLP(width, self._num_outputs(space), num_cells=hidden, **(norm if layer_norm else {}))

    def forward(self, *vectors: Tensor) -> Any:
        """Outputs (…, O) float32 of vectors (…, D) each."""
        return self.net(torch.cat(vectors, -1)).float()

    def _more_inputs(self, space: AgentSpace) -> int:
        """Numbers that come behind the observations."""
        return 0

    @abstractmethod
    def _num_outputs(self, space: AgentSpace) -> int: ...


@final
class VectorScores(_Vectors):
    """Q-network over vector observations: values (…, A) of all actions."""

    def _num_outputs(self, space: AgentSpace) -> int:
        return space.values_shape[0]


@final
class VectorActor(_Vectors):
    """Deterministic actor over vector observations: an action (…, D) before it is squashed."""

    def _num_outputs(self, space: AgentSpace) -> int:
        return space.action_shape[0]


@final
class VectorGaussian(_Vectors):
    """Gaussian actor over vector observations: mean and log standard deviation of an action before it is squashed."""

    smallest, largest = -20.0, 2.0  # of the logarithm

    def _num_outputs(self, space: AgentSpace) -> int:
        return 2 * space.action_shape[0]

    def forward(self, *vectors: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = super().forward(*vectors).chunk(2, -1)
        return mean, log_std.clamp(self.smallest, self.largest)


@final
class VectorValue(_Vectors):
    """State-value critic over vector observations: a value (…, 1)."""

    def _num_outputs(self, space: AgentSpace) -> int:
        return 1


@final
class VectorCritic(_Vectors):
    """Q-value critic over vector observations, followed by actions (…, D): a value (…, 1)."""

    def _more_inputs(self, space: AgentSpace) -> int:
        return space.action_shape[0]

    def _num_outputs(self, space: AgentSpace) -> int:
        return 1
