"""The networks of the six navigation agents: an encoder of the environment's version, two hidden layers, a head.

Layers and widths are those released with two papers: Lin, Szenher, Huang, Englot, "Distributional Reinforcement
Learning Based Integrated Decision Making and Control for Autonomous Surface Vehicles", RA-L 10(2), 2025 (vessels), and
Lin, Huang, Chen, Englot, "Decentralized Multi-Robot Navigation for Autonomous Surface Vehicles with Distributional
Reinforcement Learning", ICRA 2024 (unicycles). Departs from them: inputs are divided by their usual size unless
`normalised` is False. All take any batch shape and give float32 whatever autocast is set to.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn
from torch.nn.functional import relu
from torchrl.envs import EnvBase
from torchrl.modules import NoisyLinear

from torchrl_gpu.policies.networks.encoders import encoder_of
from torchrl_gpu.policies.networks.taus import TauEmbedding
from torchrl_gpu.policies.spaces import AgentSpace


@final
class NavigationScores(nn.Module):
    """A value for each action.

    Args:
        env: Gives the version and the number of actions.
        normalised: Whether inputs are divided by their usual size.
    """

    def __init__(self, env: EnvBase, normalised: bool = True) -> None:
        super().__init__()
        self.encoder = encoder_of(env, normalised)
        self.in_keys = self.encoder.in_keys
        self.head = _Head(self.encoder.num_features, self.encoder.num_hidden, _num_actions(self, env))

    def forward(self, *observed: Tensor) -> Tensor:
        """Values (…, A) float32."""
        return self.head(self.encoder(*observed))


@final
class NavigationQuantiles(nn.Module):
    """A quantile of the return for each action, at any shares τ.

    Args:
        env: Gives the version and the number of actions.
        normalised: Whether inputs are divided by their usual size.
    """

    def __init__(self, env: EnvBase, normalised: bool = True) -> None:
        super().__init__()
        self.encoder = encoder_of(env, normalised)
        self.in_keys = self.encoder.in_keys
        self.taus = TauEmbedding(self.encoder.num_features)
        self.head = _Head(self.encoder.num_features, self.encoder.num_hidden, _num_actions(self, env))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Quantiles (…, U, A) float32 of observations, followed by shares (…, U) or, the same for all, (U,)."""
        *observed, taus = inputs
        return self.head(self.encoder(*observed)[..., None, :] * self.taus(taus))


@final
class NavigationAtoms(nn.Module):
    """A distribution of the return over fixed values for each action: dueling, with noisy layers.

    Args:
        env: Gives the version and the number of actions.
        num_atoms: Values.
        sigma: Initial size of the noise.
        normalised: Whether inputs are divided by their usual size.
    """

    def __init__(self, env: EnvBase, num_atoms: int = 51, sigma: float = 0.05, normalised: bool = True) -> None:
        super().__init__()
        if num_atoms < 2 or sigma < 0:
            raise ValueError(
                f"NavigationAtoms: want at least 2 atoms and a sigma of at least 0; got {num_atoms}, {sigma}"
            )
        self.num_atoms = num_atoms
        self.encoder = encoder_of(env, normalised)
        self.in_keys = self.encoder.in_keys
        width, hidden = self.encoder.num_features, self.encoder.num_hidden
        self.value = _noisy(width, hidden, num_atoms, sigma)
        self.advantage = _noisy(width, hidden, _num_actions(self, env) * num_atoms, sigma)

    def forward(self, *observed: Tensor) -> Tensor:
        """Logits (…, A, Z) float32; the noise is in them under `ExplorationType.RANDOM` only."""
        features = self.encoder(*observed)
        advantage = self.advantage(features).float().unflatten(-1, (-1, self.num_atoms))
        return self.value(features).float()[..., None, :] + advantage - advantage.mean(-2, keepdim=True)


@final
class NavigationActor(nn.Module):
    """An action before it is squashed.

    Args:
        env: Gives the version and the action.
        normalised: Whether inputs are divided by their usual size.
    """

    def __init__(self, env: EnvBase, normalised: bool = True) -> None:
        super().__init__()
        self.encoder = encoder_of(env, normalised)
        self.in_keys = self.encoder.in_keys
        self.head = _Head(self.encoder.num_features, self.encoder.num_hidden, len(AgentSpace.of(env).bounds[0]))

    def forward(self, *observed: Tensor) -> Tensor:
        """Real numbers (…, D) float32."""
        return self.head(self.encoder(*observed))


@final
class NavigationGaussian(nn.Module):
    """Mean and logarithm of the standard deviation of an action before it is squashed.

    Args:
        env: Gives the version and the action.
        normalised: Whether inputs are divided by their usual size.
    """

    smallest, largest = -20.0, 2.0  # of the logarithm

    def __init__(self, env: EnvBase, normalised: bool = True) -> None:
        super().__init__()
        self.encoder = encoder_of(env, normalised)
        self.in_keys = self.encoder.in_keys
        self.head = _Head(self.encoder.num_features, self.encoder.num_hidden, 2 * len(AgentSpace.of(env).bounds[0]))

    def forward(self, *observed: Tensor) -> tuple[Tensor, Tensor]:
        """Twice (…, D) float32."""
        mean, log_std = self.head(self.encoder(*observed)).chunk(2, -1)
        return mean, log_std.clamp(self.smallest, self.largest)


@final
class NavigationCritic(nn.Module):
    """The value of an action: features of the action multiply those of what is seen.

    Args:
        env: Gives the version and the action.
        normalised: Whether inputs are divided by their usual size.
    """

    def __init__(self, env: EnvBase, normalised: bool = True) -> None:
        super().__init__()
        self.encoder = encoder_of(env, normalised)
        self.in_keys = self.encoder.in_keys
        self.action = nn.Linear(len(AgentSpace.of(env).bounds[0]), self.encoder.num_hidden)
        self.head = _Head(self.encoder.num_features, self.encoder.num_hidden, 1)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Values (…, 1) float32 of observations, followed by actions (…, D)."""
        *observed, action = inputs
        return self.head(self.encoder(*observed), relu(self.action(action)))


@final
class NavigationQuantileCritic(nn.Module):
    """Quantiles of the return after an action, at any shares τ.

    Args:
        env: Gives the version and the action.
        normalised: Whether inputs are divided by their usual size.
    """

    def __init__(self, env: EnvBase, normalised: bool = True) -> None:
        super().__init__()
        self.encoder = encoder_of(env, normalised)
        self.in_keys = self.encoder.in_keys
        self.taus = TauEmbedding(self.encoder.num_features)
        self.action = nn.Linear(len(AgentSpace.of(env).bounds[0]), self.encoder.num_hidden)
        self.head = _Head(self.encoder.num_features, self.encoder.num_hidden, 1)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Quantiles (…, U) float32 of observations, actions (…, D) and shares (…, U)."""
        *observed, action, taus = inputs
        features = self.encoder(*observed)[..., None, :] * self.taus(taus)
        return self.head(features, relu(self.action(action))[..., None, :]).squeeze(-1)


class _Head(nn.Module):
    """Two hidden layers and the outputs; what is known of an action multiplies the first hidden layer."""

    def __init__(self, num_features: int, num_hidden: int, num_outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(num_features, num_hidden), nn.Linear(num_hidden, num_hidden)
        self.out = nn.Linear(num_hidden, num_outputs)

    def forward(self, features: Tensor, action: Tensor | None = None) -> Tensor:
        hidden = relu(self.first(features))
        if action is not None:
            hidden = hidden * action
        return self.out(relu(self.second(hidden))).float()


def _noisy(num_features: int, num_hidden: int, num_outputs: int, sigma: float) -> nn.Sequential:
    first, second = (NoisyLinear(size, num_hidden, std_init=sigma) for size in (num_features, num_hidden))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), NoisyLinear(num_hidden, num_outputs, std_init=sigma))


def _num_actions(network: nn.Module, env: EnvBase) -> int:
    space = AgentSpace.of(env)
    if space.num_actions is None:
        raise ValueError(f"{type(network).__name__}: want a discrete action; that of {space.where} is continuous")
    return space.num_actions
