"""Multilayer perceptron whose shape follows from its state dict alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, final

from torch import Tensor, nn

from torchrl_gpu.system import arguments

_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}
_MOST_LAYERS = 64


@final
class Perceptron(nn.Module):
    """MLP: linear layers with an activation between them.

    Args:
        widths: Of inputs, hidden layers and outputs.
        activation: "relu", "tanh", "elu", "gelu" or "silu".
    """

    in_keys: ClassVar = ["observation"]

    def __init__(self, widths: Sequence[int], activation: str = "relu") -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.activation = _ACTIVATIONS[arguments.choice("Perceptron", "activation", activation, _ACTIVATIONS)]()

    def forward(self, observation: Tensor) -> Tensor:
        """Outputs (…, O) of observations (…, I)."""
        *hidden, last = self.layers
        for layer in hidden:
            observation = self.activation(layer(observation))
        return last(observation)


def widths_of(state: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """`Perceptron`'s names for the weights of a state dict of linear layers, in its order, and the layer widths."""
    values = list(state.values())
    wanted = "weight and bias of linear layers that follow each other"
    if not 2 <= len(values) <= 2 * _MOST_LAYERS or len(values) % 2 or not all(isinstance(v, Tensor) for v in values):
        raise ValueError(f"model_state_dict: want {wanted}; got {len(values)} entries that are not")
    widths = [arguments.length(values[0], 1)]
    for name, weight, bias in zip(list(state)[::2], values[::2], values[1::2], strict=True):
        if weight.shape != (len(bias) if bias.ndim else 0, widths[-1]):
            came = f"{name} of shape {tuple(weight.shape)} and a bias of shape {tuple(bias.shape)}"
            raise ValueError(f"model_state_dict: want {wanted}; got {came} behind {widths[-1]} numbers")
        widths.append(len(bias))
    names = [f"layers.{i}.{kind}" for i in range(len(values) // 2) for kind in ("weight", "bias")]
    return names, widths
