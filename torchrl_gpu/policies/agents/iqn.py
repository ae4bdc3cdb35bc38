"""Implicit quantile networks with masks and a level of risk."""

from __future__ import annotations

from typing import cast, final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn
from torchrl.envs import EnvBase

from torchrl_gpu.policies.agents.base import Agent, NetworkFactory, check_targets
from torchrl_gpu.policies.agents.legal import greedy_module, legal_values
from torchrl_gpu.policies.agents.shapes import check_shapes
from torchrl_gpu.policies.exploration import MaskedEpsilonGreedy
from torchrl_gpu.policies.losses import discounted, quantile_huber, weighted_mean
from torchrl_gpu.policies.losses.quantile import quantile_error
from torchrl_gpu.policies.networks.taus import in_parts
from torchrl_gpu.policies.risk import Risk, RiskLevel, midpoints
from torchrl_gpu.policies.spaces import in_keys
from torchrl_gpu.policies.targets import Targets, target_of


@final
class IQN(Agent):
    """Learns the distribution of returns as quantiles at any share τ; acts on the mean of those up to a level of risk.

    Dabney, Ostrovski, Silver, Munos, "Implicit Quantile Networks for Distributional RL", ICML 2018. `td_error` is the
    mean distance of quantiles from targets.

    Departs from the paper: scores are means over evenly spaced τ, not over random ones, so that the greedy action is
    one action; the online network chooses the bootstrapped action unless `double` is False.

    Args:
        env: The environment to act in; its action is one index.
        network: Makes the network of an environment: `forward` takes the entries named by its `in_keys` and then τ,
            (…, U) or (U,), and gives quantiles (…, U, A) float32. A `mean`, where it has one, takes the same and gives
            the means over τ (…, A): faster, or in less memory.
        num_taus: τ drawn for each state in a loss, for the prediction and for the target alike.
        acting_taus: τ for each decision.
        kappa: Errors up to which the loss is quadratic.
        cvar: Level of the conditional value at risk that decisions are made by, when acting and when bootstrapping;
            "adaptive" takes it from `clearance`.
        cvar_distance: Clearance from which on the adaptive level is 1, metres.
        gamma: Discount of a step.
        n_steps: Rewards summed before bootstrapping.
        double: Whether the online network chooses the bootstrapped action.
        tau: Share of the online weights that the targets take at each update; None for hard updates.
        target_period: Updates between hard updates, where `tau` is None.
        epsilon_start: Exploration at the first frame.
        epsilon_end: Exploration after `epsilon_frames`.
        epsilon_frames: Frames, over all environments, of the linear decay.
        upstream_compat: τ are random when acting; every quantile is bootstrapped by the action that is best at it
            alone; nothing is bootstrapped behind a time limit.
    """

    def __init__(
        self,
        env: EnvBase,
        *,
        network: NetworkFactory,
        num_taus: int = 8,
        acting_taus: int = 32,
        kappa: float = 1.0,
        cvar: Risk = 1.0,
        cvar_distance: float = 10.0,
        gamma: float = 0.99,
        n_steps: int = 1,
        double: bool = True,
        tau: float | None = 0.005,
        target_period: int = 500,
        epsilon_start: float = 1.0,
        epsilon_end: float = 0.05,
        epsilon_frames: int = 100_000,
        upstream_compat: bool = False,
    ) -> None:
        super().__init__(env, gamma=gamma, n_steps=n_steps, upstream_compat=upstream_compat)
        check_targets("IQN", tau, target_period)
        self.follows_alike = tau is not None
        if num_taus < 1 or acting_taus < 1 or kappa <= 0:
            raise ValueError(
                "IQN: want num_taus and acting_taus of at least 1 and a kappa above 0;"
                f" got {num_taus}, {acting_taus}, {kappa}"
            )
        net = network(env)
        self.space.check("IQN", net, discrete=True)
        (actions,) = self.space.values_shape
        taus = 3 if actions == 2 else 2  # as few as can be told from the actions
        check_shapes("IQN", self.space, net, gives=[(taus, actions)], takes=[(taus,)])
        self.num_taus, self.kappa, self._double = num_taus, kappa, double
        risk = RiskLevel(cvar, cvar_distance).check("IQN", self.space)
        self.policy = self._policy(net, risk, acting_taus)
        self.exploration = MaskedEpsilonGreedy(epsilon_start, epsilon_end, epsilon_frames, self.space.always_legal)
        self.even: Tensor
        self.register_buffer("even", midpoints(num_taus), persistent=False)
        self.target = target_of(net)
        self._targets = Targets([(net, self.target)], tau, target_period)

    @property
    def scores(self) -> QuantileScores:
        """What decides, with the network that learns in `network`."""
        return cast("QuantileScores", self.policy[0])

    def policy_at(self, risk: RiskLevel) -> TensorDictSequential:
        """The greedy policy at another level of risk, over the same weights."""
        return self._policy(self.scores.network, risk, self.scores.num_taus)

    def _policy(self, network: nn.Module, risk: RiskLevel, num_taus: int) -> TensorDictSequential:
        scores = QuantileScores(network, risk, num_taus, random_taus=self.upstream_compat)
        return TensorDictSequential(scores, greedy_module(self.space))

    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        taus = torch.rand(len(batch), self.num_taus, device=batch["action"].device)
        values = _of_action(self.scores.network(*self._seen(batch), taus), batch["action"])
        wanted = discounted(batch, self._next_values(batch["next"]), self.gamma, self.stop)
        loss = quantile_huber(values, taus, wanted, self.kappa)
        return {"value": weighted_mean(loss, batch)}, quantile_error(values, wanted)

    @torch.no_grad()
    def _next_values(self, after: TensorDictBase) -> Tensor:
        """Quantiles (B, U) at random τ of the states that follow, by the target network."""
        seen = self._seen(after)
        taus = torch.rand(len(after), self.num_taus, device=seen[0].device)
        values = self.target(*seen, taus)
        if self.upstream_compat:
            return legal_values(values, after, self.space).amax(-1)
        chooser = self.scores.network if self._double else self.target
        scores = _mean(chooser, seen, self.scores.risk(after) * self.even, len(after))
        return _of_action(values, legal_values(scores, after, self.space).argmax(-1))

    def _seen(self, batch: TensorDictBase) -> list[Tensor]:
        return [batch[key] for key in in_keys(self.scores.network)]

    def _follow(self, update: int) -> None:
        self._targets.follow(update)

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        """The online weights."""
        return {"value": list(self.scores.network.parameters())}


@final
class QuantileScores(TensorDictModuleBase):
    """Scores of actions: the mean of their quantiles up to a level of risk.

    Args:
        network: Gives quantiles (…, U, A) of observations and τ.
        risk: Gives the level.
        num_taus: τ for each decision, evenly spaced.
        random_taus: Whether τ are drawn instead.
    """

    def __init__(self, network: nn.Module, risk: RiskLevel, num_taus: int, random_taus: bool = False) -> None:
        super().__init__()
        self.network, self.risk, self.num_taus, self.random_taus = network, risk, num_taus, random_taus
        self.in_keys = [*in_keys(network), *risk.in_keys]
        self.out_keys = ["action_value"]
        self.even: Tensor
        self.register_buffer("even", midpoints(num_taus), persistent=False)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes `action_value` (…, A) float32."""
        seen = [tensordict.get(key) for key in in_keys(self.network)]
        scores = _mean(self.network, seen, self._taus(tensordict), tensordict.numel())
        return tensordict.set("action_value", scores)

    def _taus(self, tensordict: TensorDictBase) -> Tensor:
        """τ up to the level of each row, (…, U), or the same for all, (U,)."""
        taus = self.even
        if self.random_taus:
            taus = torch.rand(*tensordict.shape, self.num_taus, device=taus.device)
        return self.risk(tensordict) * taus


def _mean(network: nn.Module, seen: list[Tensor], taus: Tensor, rows: int) -> Tensor:
    """Means (…, A) of a network's quantiles at τ, (…, U) or (U,), of that many rows."""
    if (mean := getattr(network, "mean", None)) is not None:
        return mean(*seen, taus)
    return torch.stack([network(*seen, part).sum(-2) for part in in_parts(taus, rows)]).sum(0) / taus.shape[-1]


def _of_action(values: Tensor, action: Tensor) -> Tensor:
    """Quantiles (B, U) of actions (B,), of quantiles (B, U, A)."""
    return values.gather(2, action[:, None, None].expand(-1, values.shape[1], 1)).squeeze(2)
