"""Rainbow with masks."""

from __future__ import annotations

from typing import cast, final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictSequential
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import NoisyLinear

from torchrl_gpu.policies.agents.base import Agent, NetworkFactory, check_targets
from torchrl_gpu.policies.agents.legal import greedy_module, legal_values
from torchrl_gpu.policies.agents.shapes import check_shapes
from torchrl_gpu.policies.entry import Entry
from torchrl_gpu.policies.exploration import MaskedEpsilonGreedy
from torchrl_gpu.policies.losses import cross_entropy, discounted, project, weighted_mean
from torchrl_gpu.policies.spaces import in_keys
from torchrl_gpu.policies.targets import Targets, target_of

UPSTREAM_SUPPORT = (-1.0, 1.0)


@final
class Rainbow(Agent):
    """Distributional double Q-learning over n-step returns with noisy, dueling networks and priorities.

    Hessel et al., AAAI 2018; distributions over atoms are those of Bellemare et al., ICML 2017, noise that of Fortunato
    et al., ICLR 2018. TorchRL's `DistributionalDQNLoss` computes its targets on the host, and knows no masks; ours is
    held to it by a test. Noise is in the networks under `ExplorationType.RANDOM` only, and drawn anew after every
    update for online and target network alike. `td_error` is the cross entropy.

    Departs from the paper: priorities belong to the replay; epsilon-greedy exploration can be added to the noise.

    Args:
        env: The environment to act in; its action is one index.
        network: Makes the network of an environment: `forward` takes the entries named by its `in_keys` and gives
            logits (…, A, `num_atoms`) float32; its noisy layers are TorchRL's. A `mean`, where it has one, takes the
            same and then the atoms, and gives the means (…, A): faster, or in less memory.
        v_min: Smallest return that the atoms can tell.
        v_max: Largest return that the atoms can tell.
        gamma: Discount of a step.
        n_steps: Rewards summed before bootstrapping.
        double: Whether the online network chooses the bootstrapped action.
        tau: Share of the online weights that the targets take at each update; None for hard updates.
        target_period: Updates between hard updates, where `tau` is None.
        epsilon_start: Exploration at the first frame.
        epsilon_end: Exploration after `epsilon_frames`.
        epsilon_frames: Frames, over all environments, of the linear decay.
        upstream_compat: Atoms lie in [−1, 1], the noise of the online network is never drawn again, nothing is
            bootstrapped behind a time limit.
    """

    def __init__(
        self,
        env: EnvBase,
        *,
        network: NetworkFactory,
        v_min: float = -10.0,
        v_max: float = 45.0,
        gamma: float = 0.99,
        n_steps: int = 3,
        double: bool = True,
        tau: float | None = 0.005,
        target_period: int = 500,
        epsilon_start: float = 0.0,
        epsilon_end: float = 0.0,
        epsilon_frames: int = 100_000,
        upstream_compat: bool = False,
    ) -> None:
        super().__init__(env, gamma=gamma, n_steps=n_steps, upstream_compat=upstream_compat)
        check_targets("Rainbow", tau, target_period)
        self.follows_alike = tau is not None
        if not v_min < v_max:
            raise ValueError(f"Rainbow: v_min must be below v_max; got {v_min}, {v_max}")
        net = network(env)
        self.space.check("Rainbow", net, discrete=True)
        atoms = getattr(net, "num_atoms", None)
        if not isinstance(atoms, int) or atoms < 2:
            raise ValueError(
                "Rainbow: want a network with num_atoms, the number of values of its distributions, at least 2;"
                f" {type(net).__name__} has {'none' if atoms is None else repr(atoms)}"
            )
        check_shapes("Rainbow", self.space, net, gives=[(*self.space.values_shape, atoms)])
        lowest, highest = UPSTREAM_SUPPORT if upstream_compat else (v_min, v_max)
        expected = ExpectedScores(net, torch.linspace(lowest, highest, atoms))
        self.policy = TensorDictSequential(Entry("action_value", expected), greedy_module(self.space))
        self.exploration = MaskedEpsilonGreedy(epsilon_start, epsilon_end, epsilon_frames, self.space.always_legal)
        self.target, self._double = target_of(expected), double
        self._targets = Targets([(expected, self.target)], tau, target_period)

    @property
    def online(self) -> ExpectedScores:
        """The network that learns."""
        return cast("ExpectedScores", self.policy[0].module)

    @set_exploration_type(ExplorationType.RANDOM)  # noise on
    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        logits = _of_action(self.online.network(*self._seen(batch)), batch["action"])
        error = cross_entropy(logits, self._wanted(batch))
        return {"value": weighted_mean(error, batch)}, error

    @torch.no_grad()
    def _wanted(self, batch: TensorDictBase) -> Tensor:
        """Chances (B, Z) of the atoms after the reward."""
        after = batch["next"]
        chances = self.target.network(*self._seen(after)).softmax(-1)
        scores = self.online(*self._seen(after)) if self._double else self.target.mean_of(chances)
        chosen = legal_values(scores, after, self.space).argmax(-1)
        values = discounted(batch, self.online.support.expand(len(batch), -1), self.gamma, self.stop)
        return project(_of_action(chances, chosen), values, self.online.support)

    def _seen(self, batch: TensorDictBase) -> list[Tensor]:
        return [batch[key] for key in in_keys(self.online.network)]

    def _follow(self, update: int) -> None:
        self._targets.follow(update)
        networks = (self.target,) if self.upstream_compat else (self.online, self.target)
        for layer in [layer for network in networks for layer in network.modules() if isinstance(layer, NoisyLinear)]:
            layer.reset_noise()

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        """The online weights."""
        return {"value": list(self.online.parameters())}


@final
class ExpectedScores(nn.Module):
    """The mean of each action's distribution.

    Args:
        network: Gives logits (…, A, Z); where it has a `mean` of what is seen and the atoms, that gives the means.
        support: The atoms, (Z,).
    """

    def __init__(self, network: nn.Module, support: Tensor) -> None:
        super().__init__()
        self.network = network
        self.in_keys = in_keys(network)
        self.support: Tensor
        self.register_buffer("support", support)

    def forward(self, *observed: Tensor) -> Tensor:
        """Scores (…, A) float32."""
        if (mean := getattr(self.network, "mean", None)) is not None:
            return mean(*observed, self.support)
        return self.mean_of(self.network(*observed).softmax(-1))

    def mean_of(self, chances: Tensor) -> Tensor:
        """Means (…) of distributions (…, Z)."""
        return (chances * self.support).sum(-1)


def _of_action(distributions: Tensor, action: Tensor) -> Tensor:
    """Rows (B, Z) of distributions (B, A, Z) that belong to actions (B,)."""
    return distributions.gather(1, action[:, None, None].expand(-1, 1, distributions.shape[-1])).squeeze(1)
