"""Behaviour-cloned policies, for continuous and for discrete actions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast, final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gaussian_nll_loss
from torchrl.modules import MLP

from torchrl_gpu.policies.agents.shapes import check_network
from torchrl_gpu.policies.policy import Entry
from torchrl_gpu.policies.risk import RiskLevel
from torchrl_gpu.policies.spaces import AgentSpace, greedy_module, observed
from torchrl_gpu.policies.weights import float32_zeros
from torchrl_gpu.system import arguments
from torchrl_gpu.system.arguments import shown


@dataclass(frozen=True)
class Cloned:
    """Adapter of a cloned policy for `PolicyWrapper`: always greedy."""

    space: AgentSpace
    policy: TensorDictModuleBase
    exploration: None = None

    def policy_at(self, risk: RiskLevel) -> TensorDictModuleBase:
        """Always a ValueError: a cloned policy has no distribution of returns."""
        raise ValueError(f"BC: cvar wants an agent that knows how returns vary, such as IQN; got {risk.cvar!r}")


Scores = dict[str, Tensor]
"""Of each row, (B,) float32, by name: `loss`, and how far what the policy does is from what was shown."""


@final
class BCPolicy(nn.Module):
    """MLP policy from observation vectors to continuous actions, both normalised.

    Mean and standard deviation of observations and actions are buffers, so that a checkpoint holds them: what goes in
    and comes out is in the units of the demonstrations. A number that never changes keeps its unit.

    Args:
        obs_dim: Numbers of all observations together.
        action_dim: D.
        hidden: Widths of the hidden layers.
        observations: Names of the vectors, joined in this order.
        loss: "mse", or "nll" of a normal distribution whose standard deviations are learned, too; of normalised
            actions.
        layer_norm: Whether each hidden layer is normalised before its activation.
    """

    smallest, largest = -5.0, 2.0  # logarithms of the standard deviation

    def __init__(
        self,
        obs_dim: int = 48,
        action_dim: int = 12,
        hidden: Sequence[int] = (256, 256),
        *,
        observations: Sequence[str] = ("observation",),
        loss: Literal["mse", "nll"] = "mse",
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.obs_dim = arguments.whole(where, "obs_dim", obs_dim, 1)
        self.action_dim = arguments.whole(where, "action_dim", action_dim, 1)
        self.hidden = [arguments.whole(where, "hidden", width, 1) for width in hidden]
        self.loss = arguments.choice(where, "loss", loss, ("mse", "nll"))
        self.layer_norm = arguments.flag(where, "layer_norm", layer_norm)
        self.in_keys = list(observations)
        if not self.in_keys:
            arguments.refuse(where, "observations", "one name or more", observations)
        norm = {"norm_class": nn.LayerNorm, "norm_kwargs": [{"normalized_shape": width} for width in self.hidden]}
        outputs = self.action_dim * (2 if self.loss == "nll" else 1)
        self.net = MLP(self.obs_dim, outputs, num_cells=self.hidden, **(norm if layer_norm else {}))
        self.observation_mean: Tensor
        self.observation_std: Tensor
        self.action_mean: Tensor
        self.action_std: Tensor
        for name, size in (("observation", self.obs_dim), ("action", self.action_dim)):
            self.register_buffer(f"{name}_mean", float32_zeros(size))
            self.register_buffer(f"{name}_std", float32_zeros(size) + 1)

    @property
    def settings(self) -> dict[str, Any]:
        """Constructor arguments as plain data; `load_policy` takes them as `bc_policy`."""
        names = ("obs_dim", "action_dim", "hidden", "loss", "layer_norm")
        return {name: getattr(self, name) for name in names} | {"observations": list(self.in_keys)}

    def forward(self, *observations: Tensor) -> Tensor:
        """Actions (…, D) float32 of vectors (…, N) each, `obs_dim` numbers in all."""
        return self._outputs(observations)[0] * self.action_std + self.action_mean

    def _outputs(self, observations: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Normalised actions, and logarithms of their standard deviations where these are learned."""
        joined = (torch.cat([each.float() for each in observations], -1) - self.observation_mean) / self.observation_std
        out = self.net(joined).float()
        if self.loss == "mse":
            return out, None
        mean, log_std = out.chunk(2, -1)
        return mean, log_std.clamp(self.smallest, self.largest)

    @torch.no_grad()
    def set_statistics(self, observations: Tensor, actions: Tensor) -> None:
        """Sets the normalisation to mean and standard deviation of training rows: (L, obs_dim) and (L, action_dim)."""
        for name, values in (("observation", observations), ("action", actions)):
            std, mean = torch.std_mean(values.double(), 0, correction=0)
            changes = std > 1e-6 * mean.abs().clamp_min(1e-6)
            getattr(self, f"{name}_mean").copy_(mean)
            getattr(self, f"{name}_std").copy_(torch.where(changes, std, 1.0))

    def scores(self, batch: TensorDictBase) -> Scores:
        """`loss`, and `error`, the RMS error of the normalised action; of rows (B,) with an `action`."""
        wanted = (batch.get("action").float() - self.action_mean) / self.action_std
        mean, log_std = self._outputs(observed(self, batch))
        square = (mean - wanted).square()
        loss = square if log_std is None else gaussian_nll_loss(mean, wanted, (2 * log_std).exp(), reduction="none")
        return {"loss": loss.mean(-1), "error": square.detach().mean(-1).sqrt()}

    @property
    def policy(self) -> TensorDictModuleBase:
        return Entry("action", self)


def settings_of(state: Mapping[str, Any], action_dim: int) -> dict[str, Any]:
    """`BCPolicy` arguments that follow from the weights of its `state_dict`: `hidden`, `loss`, `layer_norm`."""
    weights = [each for name, each in state.items() if str(name).startswith("net.") and isinstance(each, Tensor)]
    widths = [len(each) for each in weights if each.ndim == 2]
    if not widths:
        raise ValueError("want the weights of a BCPolicy, linear layers net.0.weight, …; got none")
    normed = sum(each.ndim == 1 for each in weights) > len(widths)  # more than a bias of each
    loss = "mse" if widths[-1] == action_dim else "nll"
    return {"hidden": widths[:-1], "loss": loss, "layer_norm": normed}


def vectors_of(record: Any) -> tuple[Callable[[], BCPolicy], dict[str, int]]:
    """A partial of the policy that a `bc_policy` record describes, and the width of each of its observations.

    The record holds arguments of `BCPolicy`, and `widths`, in the order of its observations; of one they are known.
    ValueError where it describes something else.
    """
    recorded = {*inspect.signature(BCPolicy).parameters, "widths"}
    if not isinstance(record, Mapping) or not {"obs_dim", "action_dim"} <= set(record) <= recorded:
        raise ValueError(f"bc_policy: want {', '.join(sorted(recorded))}; got {shown(record)}")
    given = dict(record)
    widths, names = given.pop("widths", None), given.get("observations", ["observation"])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(f"bc_policy: want observations that are different names; got {shown(names)}")
    widths = [given["obs_dim"]] if widths is None and len(names) == 1 else widths
    known = isinstance(widths, list) and all(type(width) is int and width > 0 for width in widths)
    if not known or len(widths) != len(names) or sum(widths) != given["obs_dim"]:
        wanted = f"widths of {len(names)} observations, {shown(given['obs_dim'])} numbers in all"
        raise ValueError(f"bc_policy: want {wanted}; got {shown(widths)}")
    return partial(BCPolicy, **given), dict(zip(names, widths, strict=True))


@final
class ClonedChoice(nn.Module):
    """Cloned choice among discrete actions: the legal one with the largest value of a Q-network.

    Learned is softmax(values / temperature) over legal actions, so that the values can go on as those of a Q-learner:
    the lower the temperature, the less they differ. A value that all actions of a state share, as a dueling network
    adds one, changes nothing in that and is not learned.

    Args:
        space: What is observed and done; the action is one index.
        network: `forward` takes the entries named by its `in_keys` and gives values (…, A) float32.
        temperature: By which values are divided.
    """

    def __init__(self, space: AgentSpace, network: nn.Module, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = arguments.number(type(self).__name__, "temperature", temperature, above=0)
        check_network(type(self).__name__, space, network, [space.values_shape])
        self.space, self.network = space, network

    @property
    def in_keys(self) -> list[str]:
        return list(cast("list[str]", self.network.in_keys))

    def scores(self, batch: TensorDictBase) -> Scores:
        """`loss`, the cross entropy, and `agreement`, 1 where the greedy action is the one shown, else 0."""
        values = self.network(*observed(self.network, batch)).float()
        if self.space.masked:
            values = torch.where(batch.get("action_mask"), values, -torch.inf)
        action = batch.get("action")
        loss = cross_entropy(values / self.temperature, action, reduction="none")
        return {"loss": loss, "agreement": (values.detach().argmax(-1) == action).float()}

    @property
    def policy(self) -> TensorDictModuleBase:
        """Writes `action_value`, the greedy `action` and its value."""
        return TensorDictSequential(Entry("action_value", self.network), greedy_module(self.space))
