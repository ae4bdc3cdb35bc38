"""Rainbow with action masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast, final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictSequential
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import NoisyLinear

from torchrl_gpu.policies.agents.base import Agent, NetworkFactory
from torchrl_gpu.policies.agents.shapes import checked_in_keys
from torchrl_gpu.policies.exploration import EpsilonGreedy
from torchrl_gpu.policies.losses import cross_entropy, discounted, project, weighted_mean
from torchrl_gpu.policies.policy import Entry
from torchrl_gpu.policies.spaces import AgentSpace, greedy_module, in_keys, legal_values, observed, of_action
from torchrl_gpu.policies.targets import SoftTargets, TargetUpdate, target_of, weight_pairs
from torchrl_gpu.policies.weights import register_settings
from torchrl_gpu.system import arguments


@final
class Rainbow(Agent):
    """Rainbow agent: distributional double Q-learning over n-step returns.

    Networks are noisy and dueling, replay has priorities.

    Hessel et al., AAAI 2018; distributions over atoms are those of Bellemare et al., ICML 2017, noise that of Fortunato
    et al., ICLR 2018. TorchRL's `DistributionalDQNLoss` computes its targets on the host, and knows no masks; ours is
    held to it by a test. Noise is in the networks under `ExplorationType.RANDOM` only, and drawn anew after every
    update for online and target network alike. `td_error` is the cross entropy.

    Departs from the paper: priorities belong to the replay; epsilon-greedy exploration can be added to the noise.

    Args:
        space: Its action is one index.
        network: Makes the network of a space: `forward` takes the entries named by its `in_keys` and gives
            logits (…, A, `num_atoms`) float32; its noisy layers are TorchRL's. A `mean`, where it has one, takes the
            same and then the atoms, and gives the means (…, A): faster, or in less memory.
        v_min, v_max: Smallest and largest return that the atoms represent.
        double: Whether the online network chooses the bootstrapped action.
        gamma, n_steps, exploration, targets: As in `Agent`.
    """

    discrete: ClassVar = True

    def __init__(
        self,
        space: AgentSpace,
        *,
        network: NetworkFactory,
        v_min: float = -10.0,
        v_max: float = 45.0,
        gamma: float = 0.99,
        n_steps: int = 3,
        double: bool = True,
        exploration: EpsilonGreedy | None = None,
        targets: TargetUpdate = SoftTargets(),
    ) -> None:
        super().__init__(space, gamma=gamma, n_steps=n_steps, exploration=exploration, targets=targets)
        arguments.number("Rainbow", "v_max", v_max, above=arguments.number("Rainbow", "v_min", v_min))
        net = network(space)
        checked_in_keys("Rainbow", space, net)
        atoms = getattr(net, "num_atoms", None)
        if not isinstance(atoms, int) or atoms < 2:
            raise ValueError(
                f"Rainbow: num_atoms of {type(net).__name__} must be the number of values of its distributions, at"
                f" least 2, not {atoms!r}"
            )
        self._check_network(net, gives=[(*space.values_shape, atoms)])
        device = torch.get_default_device()
        support = torch.linspace(v_min, v_max, atoms, dtype=torch.float32, device=device)
        expected = ExpectedScores(net, support)
        self.policy = TensorDictSequential(Entry("action_value", expected), greedy_module(space))
        self.target = target_of(expected)
        self._double = double

    @property
    def learned_settings(self) -> Sequence[str]:
        """The first size of the noise, which noisy layers learn."""
        return ("network.sigma",)

    @property
    def online(self) -> ExpectedScores:
        return cast("ExpectedScores", self.policy[0].module)

    # Noise is on while learning, whatever the caller's exploration type.
    @set_exploration_type(ExplorationType.RANDOM)
    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        all_logits = self.online.network(*observed(self.online, batch))
        logits = of_action(all_logits, batch["action"], 1)
        td_target = self._td_target(batch)
        error = cross_entropy(logits, td_target)
        return {"value": weighted_mean(error, batch)}, error

    @torch.no_grad()
    def _td_target(self, batch: TensorDictBase) -> Tensor:
        """Target distribution: probabilities (B, Z) of the atoms after the reward."""
        after = batch["next"]
        observations = observed(self.online, after)
        # The observations of the online network, as both networks take the same ones.
        probabilities = self.target.network(*observations).softmax(-1)
        # Double Q-learning: one network chooses and the other one values.
        if self._double:
            scores = self.online(*observations)
        else:
            scores = self.target.mean_of(probabilities)
        chosen = legal_values(scores, after, self.space).argmax(-1)
        support = self.online.support
        atoms = support.expand(len(batch), -1)
        values = discounted(batch, atoms, self.gamma)
        chosen_probabilities = of_action(probabilities, chosen, 1)
        return project(chosen_probabilities, values, support)

    def update_targets(self, update: int) -> None:
        super().update_targets(update)
        for network in (self.online, self.target):
            for layer in network.modules():
                if isinstance(layer, NoisyLinear):
                    layer.reset_noise()

    def _target_pairs(self) -> list[tuple[Tensor, Tensor]]:
        return weight_pairs((self.online, self.target))

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        return {"value": list(self.online.parameters())}


@final
class ExpectedScores(nn.Module):
    """Mean of each action's distribution.

    The network's own `mean` gives it if there is one, otherwise its logits (…, A, Z).
    """

    def __init__(self, network: nn.Module, support: Tensor) -> None:
        super().__init__()
        self.network = network
        self.in_keys = in_keys(network)
        self.support: Tensor
        register_settings(self, support=support)

    def forward(self, *observations: Tensor) -> Tensor:
        """Scores (…, A) float32."""
        mean = getattr(self.network, "mean", None)
        if mean is not None:
            return mean(*observations, self.support)
        logits = self.network(*observations)
        probabilities = logits.softmax(-1)
        return self.mean_of(probabilities)

    def mean_of(self, probabilities: Tensor) -> Tensor:
        """Means (…) of distributions (…, Z)."""
        return (probabilities * self.support).sum(-1)
