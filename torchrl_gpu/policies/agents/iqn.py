"""Implicit quantile networks (IQN) with action masks and a level of risk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, cast, final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn

from torchrl_gpu.policies.agents.base import Agent, NetworkFactory
from torchrl_gpu.policies.exploration import EpsilonGreedy
from torchrl_gpu.policies.losses import discounted, quantile_error, quantile_huber, weighted_mean
from torchrl_gpu.policies.networks.quantile_embedding import in_parts
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.policies.risk import Risk, RiskLevel, midpoints
from torchrl_gpu.policies.spaces import AgentSpace, greedy_module, in_keys, legal_values, observed, of_action
from torchrl_gpu.policies.targets import SoftTargets, TargetUpdate, target_of, weight_pairs
from torchrl_gpu.policies.weights import register_settings
from torchrl_gpu.policies.wrapper import PolicyWrapper
from torchrl_gpu.system import arguments


@final
class IQN(Agent):
    """IQN agent: quantiles of the return at any fraction τ.

    It acts on their mean up to a level of risk. Dabney, Ostrovski, Silver, Munos, "Implicit Quantile Networks for
    Distributional RL", ICML 2018. `td_error` is the mean distance of quantiles from targets.

    Departs from the paper: scores are means over evenly spaced τ, not over random ones, so that the greedy action is
    one action; the online network chooses the bootstrapped action unless `double` is False.

    Args:
        space: Its action is one index.
        network: Makes the network of a space: `forward` takes the entries named by its `in_keys` and then τ,
            (…, U) or (U,), and gives quantiles (…, U, A) float32. An optional method `mean` takes the same and gives
            the means over τ (…, A): faster, or in less memory.
        num_taus: τ drawn for each state in a loss, for the prediction and for the target alike.
        acting_taus: τ for each decision.
        kappa: Errors up to which the loss is quadratic.
        cvar: Level of the conditional value at risk that decisions are made by, when acting and when bootstrapping;
            "adaptive" takes it from `clearance`.
        cvar_distance: Clearance from which the adaptive level is 1, metres.
        double: Whether the online network chooses the bootstrapped action.
        gamma, n_steps, exploration, targets: As in `Agent`.
    """

    discrete: ClassVar = True

    def __init__(
        self,
        space: AgentSpace,
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
        exploration: EpsilonGreedy | None = EpsilonGreedy(),
        targets: TargetUpdate = SoftTargets(),
    ) -> None:
        super().__init__(space, gamma=gamma, n_steps=n_steps, exploration=exploration, targets=targets)
        arguments.whole("IQN", "num_taus", num_taus, 1)
        arguments.whole("IQN", "acting_taus", acting_taus, 1)
        arguments.number("IQN", "kappa", kappa, above=0)
        (actions,) = space.values_shape
        # As few τ as will do, but not as many as actions: swapped axes must show.
        taus = 3 if actions == 2 else 2
        shape = (taus, actions)
        taus_shape = (taus,)
        net = self._check_network(network(space), gives=[shape], takes=[taus_shape])
        self.num_taus = num_taus
        self.kappa = kappa
        self._double = double
        self.policy = self._policy(net, RiskLevel(cvar, cvar_distance), acting_taus)
        self.even: Tensor
        register_settings(self, even=midpoints(num_taus))
        self.target = target_of(net)

    @property
    def scores(self) -> QuantileScores:
        """Scores that the greedy policy maximises.

        Their `network` is the online network.
        """
        return cast("QuantileScores", self.policy[0])

    def policy_at(self, risk: RiskLevel) -> TensorDictSequential:
        policy = self._policy(self.scores.network, risk, self.scores.num_taus)
        return policy.to(self.scores.even.device)

    def alternatives(self) -> Mapping[str, Policy]:
        if "clearance" not in self.space.observations:
            return {}
        return {"adaptive IQN": PolicyWrapper(self, cvar="adaptive")}

    def _policy(self, network: nn.Module, risk: RiskLevel, num_taus: int) -> TensorDictSequential:
        scores = QuantileScores(network, risk.check(self.name, self.space), num_taus)
        greedy = greedy_module(self.space)
        return TensorDictSequential(scores, greedy)

    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        action = batch["action"]
        taus = self._draw_taus(batch, action.device)
        quantiles = self.scores.network(*observed(self.target, batch), taus)
        values = of_action(quantiles, action, 2)
        td_target = discounted(batch, self._next_values(batch["next"]), self.gamma)
        loss = quantile_huber(values, taus, td_target, self.kappa)
        return {"value": weighted_mean(loss, batch)}, quantile_error(values, td_target)

    @torch.no_grad()
    def _next_values(self, after: TensorDictBase) -> Tensor:
        """Target network's quantiles (B, U) at random τ of the next states."""
        observations = observed(self.target, after)
        taus = self._draw_taus(after, observations[0].device)
        values = self.target(*observations, taus)
        # Double Q-learning: one network chooses and the other one values, so that noise is not taken for value.
        chooser = self.scores.network if self._double else self.target
        even = self.scores.risk(after) * self.even
        scores = _mean(chooser, observations, even, len(after))
        chosen = legal_values(scores, after, self.space).argmax(-1)
        return of_action(values, chosen, 2)

    def _draw_taus(self, batch: TensorDictBase, device: torch.device) -> Tensor:
        rows = len(batch)
        return torch.rand(rows, self.num_taus, device=device, dtype=torch.float32)

    def _target_pairs(self) -> list[tuple[Tensor, Tensor]]:
        return weight_pairs((self.scores.network, self.target))

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        return {"value": list(self.scores.network.parameters())}


@final
class QuantileScores(TensorDictModuleBase):
    """Scores of actions: mean quantiles at evenly spaced τ up to a level of risk."""

    def __init__(self, network: nn.Module, risk: RiskLevel, num_taus: int) -> None:
        super().__init__()
        self.network = network
        self.risk = risk
        self.num_taus = num_taus
        self.in_keys = [*in_keys(network), *risk.in_keys]
        self.out_keys = ["action_value"]
        self.even: Tensor
        register_settings(self, even=midpoints(num_taus))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action_value` (…, A) float32."""
        # (…, U) if each row has its own level, (U,) if all share one.
        taus = self.risk(tensordict) * self.even
        rows = math.prod(tensordict.shape)
        scores = _mean(self.network, observed(self.network, tensordict), taus, rows)
        return tensordict.set("action_value", scores)


def _mean(network: nn.Module, observations: list[Tensor], taus: Tensor, rows: int) -> Tensor:
    """Means (…, A) over τ, (…, U) or (U,), of a network's quantiles of `rows` rows."""
    mean = getattr(network, "mean", None)
    if mean is not None:
        return mean(*observations, taus)
    # Parts bound the memory of quantiles, of which there are as many as rows times τ times actions.
    parts = in_parts(taus, rows)
    sums = [network(*observations, part).sum(-2) for part in parts]
    return torch.stack(sums).sum(0) / taus.shape[-1]
