"""Networks for observations that are vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torchrl.modules import MLP

from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments

_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}
_MOST_LAYERS = 64
# Units of a hidden layer.
_MOST_UNITS = 65_536


class _Vectors(nn.Module):
    """Base class of networks for vector observations: a perceptron.

    Args:
        space: What the agent observes and does.
        observations: Names of the vectors, joined in this order; None for all observations (D,) of real numbers.
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
        # Masks and indices are no vectors: only real numbers are.
        vectors = []
        for name, (shape, dtype) in space.observations.items():
            if len(shape) == 1 and "float" in dtype:
                vectors.append(name)
        self.in_keys = list(vectors if observations is None else observations)
        if not self.in_keys or not set(self.in_keys) <= set(vectors):
            raise ValueError(
                f"{where}: observations must be among the vectors of real numbers of {space.source},"
                f" {', '.join(vectors) or '(none)'}, not {', '.join(self.in_keys) or 'none'}"
            )
        hidden = arguments.listed(where, "hidden", "a list of widths", hidden)
        hidden = [arguments.whole(where, "hidden", width, 1, _MOST_UNITS) for width in hidden]
        norm: dict[str, object] = {}
        if layer_norm:
            shapes = [{"normalized_shape": width} for width in hidden]
            norm = {"norm_class": nn.LayerNorm, "norm_kwargs": shapes}
        width = sum(map(space.size_of, self.in_keys))
        width += self._more_inputs(space)
        self.net = MLP(width, self._num_outputs(space), num_cells=hidden, **norm)

    def forward(self, *vectors: Tensor) -> Any:
        """Outputs (…, O) float32 of vectors (…, D) each."""
        return self.net(torch.cat(vectors, -1)).float()

    def _more_inputs(self, space: AgentSpace) -> int:
        """Numbers that come behind the observations."""
        return 0

    def _num_outputs(self, space: AgentSpace) -> int:
        return 1


@final
class VectorScores(_Vectors):
    """Q-network over vector observations: values (…, A) of all actions."""

    def _num_outputs(self, space: AgentSpace) -> int:
        return space.values_shape[0]


@final
class VectorActor(_Vectors):
    """Deterministic actor over vector observations: an action (…, D) before squashing."""

    def _num_outputs(self, space: AgentSpace) -> int:
        return space.action_shape[0]


@final
class VectorGaussian(_Vectors):
    """Gaussian actor over vector observations.

    It gives mean and logarithm of the standard deviation of an action before it is squashed.
    """

    # Limits of the logarithm.
    smallest = -20.0
    largest = 2.0

    def _num_outputs(self, space: AgentSpace) -> int:
        return 2 * space.action_shape[0]

    def forward(self, *vectors: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = super().forward(*vectors).chunk(2, -1)
        return mean, log_std.clamp(self.smallest, self.largest)


@final
class VectorValue(_Vectors):
    """State-value critic over vector observations: a value (…, 1)."""


@final
class VectorCritic(_Vectors):
    """Q-value critic over vector observations and actions (…, D): a value (…, 1)."""

    def _more_inputs(self, space: AgentSpace) -> int:
        return space.action_shape[0]


def perceptron(widths: Sequence[int], activation: object = "relu") -> MLP:
    """Linear layers with an activation between them, which read `observation`.

    Args:
        widths: From inputs to outputs.
        activation: A name.
    """
    kind = _ACTIVATIONS[arguments.choice("perceptron", "activation", activation, _ACTIVATIONS)]
    inner = list(widths[1:-1])
    network = MLP(widths[0], widths[-1], num_cells=inner, activation_class=kind)
    network.in_keys = ["observation"]
    return network


def widths_of(state: Mapping[str, object]) -> tuple[list[str], list[int]]:
    """Names and layer widths of a state dict of linear layers.

    Names are those of the weights in a `perceptron`, in the order of the state dict.
    """
    values = [each for each in state.values() if isinstance(each, Tensor)]
    are_pairs = len(values) == len(state) and len(state) % 2 == 0
    if not are_pairs or not 2 <= len(state) <= 2 * _MOST_LAYERS:
        raise ValueError(
            f"model_state_dict must be weight and bias of linear layers that follow each other, and its {len(state)}"
            " entries are not"
        )
    widths = [arguments.length(values[0], 1)]
    layers = zip(list(state)[::2], values[::2], values[1::2], strict=True)
    for name, weight, bias in layers:
        num_outputs = len(bias) if bias.ndim else 0
        if weight.shape != (num_outputs, widths[-1]):
            raise ValueError(
                "model_state_dict must be weight and bias of linear layers that follow each other, and"
                f" {name} of shape {tuple(weight.shape)} and a bias of shape {tuple(bias.shape)} do not follow"
                f" {widths[-1]} numbers"
            )
        widths.append(len(bias))
    names = []
    for layer in range(len(values) // 2):
        names += [f"{2 * layer}.weight", f"{2 * layer}.bias"]
    return names, widths
