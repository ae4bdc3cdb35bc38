"""Behaviour-cloned policies, for continuous and for discrete actions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast, final

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
    """Adapter of a cloned policy for `PolicyWrapper`, always greedy."""

    space: AgentSpace
    policy: TensorDictModuleBase
    exploration: None = None

    def policy_at(self, risk: RiskLevel) -> TensorDictModuleBase:
        """Refuse: a cloned policy has no distribution of returns."""
        raise ValueError(f"BC: cvar {risk.cvar!r} needs an agent that knows how returns vary, such as IQN")


# Rows (B,) float32 by name: `loss`, and the distance of the policy's actions from those of the demonstrations.
Scores = dict[str, Tensor]


@final
class BCPolicy(nn.Module):
    """MLP policy from observation vectors to continuous actions.

    Both are normalised. Mean and standard deviation are buffers, so that a checkpoint holds them and inputs and outputs
    are in the units of the demonstrations. A number that never changes in the demonstrations keeps its unit.

    Args:
        obs_dim: Numbers of all observations together.
        action_dim: D.
        hidden: Widths of the hidden layers.
        observations: Names of the vectors, joined in this order.
        loss: "mse", or "nll" of a normal distribution whose standard deviations are learned, too. Both are of
            normalised actions.
        layer_norm: Whether each hidden layer is normalised before its activation.
    """

    # Limits of the logarithm of the standard deviation.
    smallest = -5.0
    largest = 2.0

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
        norm: dict[str, object] = {}
        if layer_norm:
            shapes = [{"normalized_shape": width} for width in self.hidden]
            norm = {"norm_class": nn.LayerNorm, "norm_kwargs": shapes}
        outputs = self.action_dim * (2 if self.loss == "nll" else 1)
        self.net = MLP(self.obs_dim, outputs, num_cells=self.hidden, **norm)
        self.observation_mean: Tensor
        self.observation_std: Tensor
        self.action_mean: Tensor
        self.action_std: Tensor
        for name, size in (("observation", self.obs_dim), ("action", self.action_dim)):
            self.register_buffer(f"{name}_mean", float32_zeros(size))
            self.register_buffer(f"{name}_std", float32_zeros(size) + 1)

    @property
    def settings(self) -> dict[str, object]:
        """Constructor arguments as plain data, which `load_policy` takes as `bc_policy`."""
        names = ("obs_dim", "action_dim", "hidden", "loss", "layer_norm")
        settings = {name: getattr(self, name) for name in names}
        settings["observations"] = list(self.in_keys)
        return settings

    def forward(self, *observations: Tensor) -> Tensor:
        """Actions (…, D) float32 of vectors (…, N), `obs_dim` numbers in all."""
        normalised, _ = self._outputs(observations)
        return normalised * self.action_std + self.action_mean

    def _outputs(self, observations: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Normalised actions, and logarithms of their standard deviations if learned."""
        joined = torch.cat([each.float() for each in observations], -1)
        joined = (joined - self.observation_mean) / self.observation_std
        out = self.net(joined)
        out = out.float()
        if self.loss == "mse":
            return out, None
        mean, log_std = out.chunk(2, -1)
        return mean, log_std.clamp(self.smallest, self.largest)

    @torch.no_grad()
    def set_statistics(self, observations: Tensor, actions: Tensor) -> None:
        """Set the normalisation to mean and standard deviation of training rows.

        Args:
            observations: (L, obs_dim).
            actions: (L, action_dim).
        """
        for name, values in (("observation", observations), ("action", actions)):
            # In float64, as demonstrations may have millions of rows.
            std, mean = torch.std_mean(values.double(), 0, correction=0)
            # A constant has a deviation of rounding errors, by which nothing may be divided.
            changes = std > 1e-6 * mean.abs().clamp_min(1e-6)
            getattr(self, f"{name}_mean").copy_(mean)
            getattr(self, f"{name}_std").copy_(torch.where(changes, std, 1.0))

    def scores(self, batch: TensorDictBase) -> Scores:
        """`loss`, and `error`, the RMS error of the normalised action.

        Both are of rows (B,) with an `action`.
        """
        # The loss is in normalised units, so that numbers of different units count alike.
        wanted = (batch.get("action").float() - self.action_mean) / self.action_std
        mean, log_std = self._outputs(observed(self, batch))
        square = (mean - wanted).square()
        if log_std is None:
            loss = square
        else:
            loss = gaussian_nll_loss(mean, wanted, (2 * log_std).exp(), reduction="none")
        error = square.detach().mean(-1).sqrt()
        return {"loss": loss.mean(-1), "error": error}

    @property
    def policy(self) -> TensorDictModuleBase:
        return Entry("action", self)


def settings_of(state: Mapping[str, object], action_dim: int) -> dict[str, object]:
    """`BCPolicy` arguments that its weights imply: `hidden`, `loss`, `layer_norm`."""
    weights = []
    for name, each in state.items():
        if str(name).startswith("net.") and isinstance(each, Tensor):
            weights.append(each)
    widths = [len(each) for each in weights if each.ndim == 2]
    if not widths:
        raise ValueError("model_state_dict has none of the linear layers of a BCPolicy: net.0.weight, …")
    # A linear layer has one vector, its bias. More are those of layer norms.
    num_vectors = sum(each.ndim == 1 for each in weights)
    loss = "mse" if widths[-1] == action_dim else "nll"
    return {"hidden": widths[:-1], "loss": loss, "layer_norm": num_vectors > len(widths)}


def vectors_of(record: object) -> tuple[Callable[[], BCPolicy], dict[str, int]]:
    """Policy of a `bc_policy` record, and the widths of its observations.

    The policy is a partial. The record holds arguments of `BCPolicy` and `widths` in the order of its observations; a
    single width follows from `obs_dim`. ValueError if it describes something else.
    """
    # The constructor is the list of what a record may hold.
    recorded = {*inspect.signature(BCPolicy).parameters, "widths"}
    if not isinstance(record, Mapping) or not {"obs_dim", "action_dim"} <= set(record) <= recorded:
        raise ValueError(f"bc_policy must be a dict of {', '.join(sorted(recorded))}, not {shown(record)}")
    given = dict(record)
    widths = given.pop("widths", None)
    names = given.get("observations", ["observation"])
    are_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not are_names or len(set(names)) < len(names):
        raise ValueError(f"bc_policy: observations must be a list of different names, not {shown(names)}")
    if widths is None and len(names) == 1:
        widths = [given["obs_dim"]]
    are_widths = isinstance(widths, list) and all(type(width) is int and width > 0 for width in widths)
    if not are_widths or len(widths) != len(names) or sum(widths) != given["obs_dim"]:
        raise ValueError(
            f"bc_policy: widths must be those of {len(names)} observations, {shown(given['obs_dim'])} numbers in all,"
            f" not {shown(widths)}"
        )
    return partial(BCPolicy, **given), dict(zip(names, widths, strict=True))


@final
class ClonedChoice(nn.Module):
    """Cloned choice among discrete actions.

    It is the legal action with the largest value of a Q-network. The network learns softmax(values / temperature) over
    legal actions, so that a Q-learner can start from its values: the lower the temperature, the closer they are
    together. A value that all actions of a state share, as a dueling network adds one, does not change the softmax and
    is not learned.

    Args:
        space: What is observed and done; the action is one index.
        network: `forward` takes the entries named by its `in_keys` and gives values (…, A) float32.
        temperature: Divisor of the values.
    """

    def __init__(self, space: AgentSpace, network: nn.Module, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = arguments.number(type(self).__name__, "temperature", temperature, above=0)
        check_network(type(self).__name__, space, network, [space.values_shape])
        self.space = space
        self.network = network

    @property
    def in_keys(self) -> list[str]:
        return list(cast("list[str]", self.network.in_keys))

    def scores(self, batch: TensorDictBase) -> Scores:
        """`loss`, the cross entropy, and `agreement` with the demonstrations.

        Agreement is 1 where the greedy action is the demonstrated one, otherwise 0.
        """
        values = self.network(*observed(self.network, batch)).float()
        if self.space.masked:
            values = torch.where(batch.get("action_mask"), values, -torch.inf)
        action = batch.get("action")
        loss = cross_entropy(values / self.temperature, action, reduction="none")
        agreement = (values.detach().argmax(-1) == action).float()
        return {"loss": loss, "agreement": agreement}

    @property
    def policy(self) -> TensorDictModuleBase:
        """Module that writes `action_value`, the greedy `action` and its value."""
        return TensorDictSequential(Entry("action_value", self.network), greedy_module(self.space))
