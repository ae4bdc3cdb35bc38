"""Networks of the navigation agents: an encoder, two hidden layers, a head.

Layers and widths are those released with two papers: Lin, Szenher, Huang, Englot, "Distributional Reinforcement
Learning Based Integrated Decision Making and Control for Autonomous Surface Vehicles", RA-L 10(2), 2025 (vessels), and
Lin, Huang, Chen, Englot, "Decentralized Multi-Robot Navigation for Autonomous Surface Vehicles with Distributional
Reinforcement Learning", ICRA 2024 (unicycles). Departs from them: inputs are divided by their usual size unless
`normalised` is False. All take any batch shape and give float32 whatever autocast is set to.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast, final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu
from torchrl.modules import NoisyLinear

from torchrl_gpu.policies.networks.quantile_embedding import TauEmbedding, in_parts
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.weights import register_settings
from torchrl_gpu.system import arguments
from torchrl_gpu.system.tracing import is_traced

# Logits at once on a CPU, whose cache holds no more.
_LOGITS_AT_ONCE = 1 << 17
# Largest usual size of each kind of entry: metres, metres per second, radians per second, newtons.
_GOAL = 40.0
_DISTANCE = 20.0
_SPEED = 4.0
_RADIUS = 4.0
_TURN = 1.0
_THRUST = 1000.0


@final
class UnicycleEncoder(nn.Module):
    """312 features of a unicycle's observation.

    Its 39 numbers are itself and its goal, five static and five moving objects. They are divided by their usual size
    first if `normalised`.
    """

    in_keys: ClassVar = ["observation"]
    num_inputs = 39
    num_features = 312
    num_hidden = 156

    def __init__(self, normalised: bool = True) -> None:
        super().__init__()
        self.robot = nn.Linear(4, 32)
        self.static = nn.Linear(15, 120)
        self.moving = nn.Linear(20, 160)
        own = [_GOAL, _GOAL, _SPEED, _SPEED]
        sizes = own + [_DISTANCE, _DISTANCE, _RADIUS] * 5
        sizes += [_DISTANCE, _DISTANCE, _SPEED, _SPEED] * 5
        self.size: Tensor
        register_settings(self, size=sizes if normalised else [1.0] * len(sizes))

    def forward(self, observation: Tensor) -> Tensor:
        """Features (…, 312) of observations (…, 39)."""
        normalised = observation.to(self.size.dtype) / self.size
        robot, static, moving = normalised.split([4, 15, 20], -1)
        features = [self.robot(robot), self.static(static), self.moving(moving)]
        joined = torch.cat(features, -1)
        return relu(joined, inplace=True)


@final
class VesselEncoder(nn.Module):
    """256 features of a vessel's observation.

    Its 32 numbers are itself, its goal, and up to five objects, which go through one encoder. They are divided by their
    usual size first if `normalised`: forces are 1000 times the others.
    """

    in_keys: ClassVar = ["observation", "object_mask"]
    num_inputs = 32
    num_features = 256
    num_hidden = 128

    def __init__(self, normalised: bool = True) -> None:
        super().__init__()
        self.robot = nn.Linear(7, 56)
        self.object = nn.Linear(5, 40)
        sizes = [_GOAL, _GOAL, _SPEED, _SPEED, _TURN, _THRUST, _THRUST]
        sizes += [_DISTANCE, _DISTANCE, _SPEED, _SPEED, _RADIUS] * 5
        self.size: Tensor
        register_settings(self, size=sizes if normalised else [1.0] * len(sizes))

    def forward(self, observation: Tensor, object_mask: Tensor) -> Tensor:
        """Features (…, 256) of observations (…, 32).

        `object_mask` (…, 5) bool says which objects exist.
        """
        normalised = observation.to(self.size.dtype) / self.size
        robot, objects = normalised.split([7, 25], -1)
        there = object_mask[..., None]
        seen = torch.where(there, objects.unflatten(-1, (5, 5)), 0.0)
        # Three times as fast as `where`, and the same, as all features are finite.
        features = self.object(seen)
        features = features * there.to(features.dtype)
        own = self.robot(robot)
        joined = torch.cat([own, features.flatten(-2)], -1)
        return relu(joined, inplace=True)


Encoder = UnicycleEncoder | VesselEncoder


def encoder_of(space: AgentSpace, normalised: bool = True) -> Encoder:
    """The encoder of a space, selected by the length of its `observation`."""
    size = space.size_of("observation")
    for encoder in (UnicycleEncoder, VesselEncoder):
        if size == encoder.num_inputs:
            return encoder(normalised)
    raise ValueError(f"encoder_of: observation of {space.source} must have 39 or 32 numbers, not {size}")


class _Network(nn.Module):
    """Base class of navigation networks: an encoder, and the layers of a subclass."""

    def __init__(self, space: AgentSpace, normalised: bool = True) -> None:
        super().__init__()
        self.encoder = encoder_of(space, normalised)
        self.in_keys = self.encoder.in_keys
        # The order in which layers are made is the order in which their weights are drawn.
        self._add_layers(space)
        num_outputs = self._num_outputs(space)
        self.head = _Head(self.encoder.num_features, self.encoder.num_hidden, num_outputs)

    def forward(self, *observations: Tensor) -> Any:
        """Outputs (…, O) float32."""
        features = self.encoder(*observations)
        return self.head(features)

    def _add_layers(self, space: AgentSpace) -> None:
        """Make the layers between encoder and head."""

    def _num_outputs(self, space: AgentSpace) -> int:
        return 1


@final
class NavigationScores(_Network):
    """Q-network: values (…, A) of all actions."""

    def _num_outputs(self, space: AgentSpace) -> int:
        return space.values_shape[0]


@final
class NavigationQuantiles(_Network):
    """Quantile network: quantiles of the return for each action, at any fractions τ."""

    def _add_layers(self, space: AgentSpace) -> None:
        self.taus = TauEmbedding(self.encoder.num_features)

    def _num_outputs(self, space: AgentSpace) -> int:
        return space.values_shape[0]

    def forward(self, *inputs: Tensor) -> Tensor:
        """Quantiles (…, U, A) float32 of observations and fractions.

        Fractions are (…, U) or, the same for all, (U,).
        """
        *observations, taus = inputs
        features = self.encoder(*observations)[..., None, :]
        return self.head(features * self.taus(taus))

    def mean(self, *inputs: Tensor) -> Tensor:
        """Means (…, A) float32 of the quantiles of the same inputs, with less work.

        Observations are encoded once; the last layer, which is linear, is given the mean of its inputs.
        """
        *observations, taus = inputs
        features = self.encoder(*observations)
        parts = in_parts(taus, features[..., 0].numel())
        total: Tensor | int = 0
        for part in parts:
            product = features[..., None, :] * self.taus(part)
            hidden = self.head.hidden(product)
            # Under autocast the hidden layer is in half precision, in which a sum over many τ would lose digits.
            dtype = torch.promote_types(hidden.dtype, torch.float32)
            total = total + hidden.sum(-2, dtype=dtype)
        return self.head.out(total / taus.shape[-1]).float()


@final
class NavigationAtoms(nn.Module):
    """Categorical distribution of the return over fixed values, for each action.

    It is dueling, with noisy layers.

    Args:
        num_atoms: Number of values.
        sigma: Initial size of the noise.
    """

    def __init__(self, space: AgentSpace, num_atoms: int = 51, sigma: float = 0.05, normalised: bool = True) -> None:
        super().__init__()
        arguments.whole("NavigationAtoms", "num_atoms", num_atoms, 2)
        arguments.number("NavigationAtoms", "sigma", sigma, 0)
        self.num_atoms = num_atoms
        self.encoder = encoder_of(space, normalised)
        self.in_keys = self.encoder.in_keys
        width = self.encoder.num_features
        hidden = self.encoder.num_hidden
        self.value = _noisy(width, hidden, num_atoms, sigma)
        num_logits = space.values_shape[0] * num_atoms
        self.advantage = _noisy(width, hidden, num_logits, sigma)

    def forward(self, *observations: Tensor) -> Tensor:
        """Logits (…, A, Z) float32, noisy under `ExplorationType.RANDOM` only."""
        value, hidden, weights = self._streams(*observations)
        return self._logits(value, hidden, weights)

    def mean(self, *inputs: Tensor) -> Tensor:
        """Means (…, A) float32 of the distributions, in less memory.

        Inputs are those of `forward`, followed by the values (Z,).
        """
        *observations, values = inputs
        value, hidden, weights = self._streams(*observations)
        # An exported graph is for any number of rows.
        if torch.compiler.is_exporting():
            probabilities = self._logits(value, hidden, weights).softmax(-1)
            return (probabilities * values).sum(-1)
        num_logits = len(weights[1])
        rows = value[..., 0].numel()
        if value.device.type == "cpu" and not is_traced():
            rows = _LOGITS_AT_ONCE // num_logits
        size = max(1, rows)
        value_rows = value.reshape(-1, value.shape[-1])
        hidden_rows = hidden.reshape(-1, hidden.shape[-1])
        parts = zip(value_rows.split(size), hidden_rows.split(size), strict=True)
        means = []
        for value_part, hidden_part in parts:
            probabilities = self._logits(value_part, hidden_part, weights).softmax(-1)
            means.append((probabilities * values).sum(-1))
        num_actions = num_logits // self.num_atoms
        joined = torch.cat(means)
        return joined.view(*value.shape[:-1], num_actions)

    def _streams(self, *observations: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Logits of the value (…, Z), and what the advantage's last layer needs.

        That is its input, and its weights and bias.
        """
        features = self.encoder(*observations)
        hidden = features
        *layers, last = self.advantage
        for layer in layers:
            hidden = layer(hidden)
        last = cast("NoisyLinear", last)
        value = self.value(features).float()
        return value, hidden, (last.weight, last.bias)

    def _logits(self, value: Tensor, hidden: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
        advantage = linear(hidden, *weights).float()
        advantage = advantage.unflatten(-1, (-1, self.num_atoms))
        # Value and mean, which have no axis of actions, are put together first: one pass less over all logits.
        return advantage + (value - advantage.mean(-2))[..., None, :]


@final
class NavigationActor(_Network):
    """Deterministic actor: an action (…, D) before it is squashed."""

    def _num_outputs(self, space: AgentSpace) -> int:
        return space.action_shape[0]


@final
class NavigationGaussian(_Network):
    """Gaussian actor: mean and log standard deviation of an action before squashing."""

    # Limits of the logarithm.
    smallest = -20.0
    largest = 2.0

    def _num_outputs(self, space: AgentSpace) -> int:
        return 2 * space.action_shape[0]

    def forward(self, *observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation, (…, D) float32 each."""
        mean, log_std = super().forward(*observations).chunk(2, -1)
        return mean, log_std.clamp(self.smallest, self.largest)


@final
class NavigationValue(_Network):
    """State-value critic: a value (…, 1)."""


@final
class NavigationCritic(_Network):
    """Q-value critic: features of the action multiply those of the observations."""

    def _add_layers(self, space: AgentSpace) -> None:
        self.action = nn.Linear(*space.action_shape, self.encoder.num_hidden)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Values (…, 1) float32 of observations, followed by actions (…, D)."""
        *observations, action = inputs
        features = self.encoder(*observations)
        of_action = relu(self.action(action))
        return self.head(features, of_action)


@final
class NavigationQuantileCritic(_Network):
    """Quantile critic: quantiles of the return after an action, at any fractions τ."""

    def _add_layers(self, space: AgentSpace) -> None:
        self.taus = TauEmbedding(self.encoder.num_features)
        self.action = nn.Linear(*space.action_shape, self.encoder.num_hidden)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Quantiles (…, U) float32 of observations, actions (…, D) and fractions (…, U)."""
        *observations, action, taus = inputs
        features = self.encoder(*observations)[..., None, :]
        features = features * self.taus(taus)
        of_action = relu(self.action(action))[..., None, :]
        return self.head(features, of_action).squeeze(-1)


class _Head(nn.Module):
    """Two hidden layers and the outputs.

    Features of an action multiply the first hidden layer.
    """

    def __init__(self, num_features: int, num_hidden: int, num_outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(num_features, num_hidden)
        self.second = nn.Linear(num_hidden, num_hidden)
        self.out = nn.Linear(num_hidden, num_outputs)

    def forward(self, features: Tensor, action: Tensor | None = None) -> Tensor:
        hidden = self.hidden(features, action)
        return self.out(hidden).float()

    def hidden(self, features: Tensor, action: Tensor | None = None) -> Tensor:
        first = self.first(features)
        hidden = relu(first, inplace=True)
        if action is not None:
            hidden = hidden * action
        second = self.second(hidden)
        return relu(second, inplace=True)


def _noisy(num_features: int, num_hidden: int, num_outputs: int, sigma: float) -> nn.Sequential:
    first = NoisyLinear(num_features, num_hidden, std_init=sigma)
    second = NoisyLinear(num_hidden, num_hidden, std_init=sigma)
    last = NoisyLinear(num_hidden, num_outputs, std_init=sigma)
    return nn.Sequential(first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True), last)
