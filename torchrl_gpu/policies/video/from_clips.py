"""Any agent that looks at clips: one encoder in front of it, which learns from what the critics get wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from torchrl_gpu.policies.agents.base import Agent
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.policies.risk import RiskLevel
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.video.shift import random_shift

CLIP, FEATURES = "clip", "features"

ClipNetworkFactory = Callable[[tuple[int, ...]], nn.Module]
"""Makes an encoder of clips (T, C, H, W): `forward` takes them (…, T, C, H, W) uint8 and gives features (…, D)."""


@final
class FromClips(Agent):
    """An agent that sees `clip`, uint8 (T, C, H, W), through an encoder: to it, clips are vectors of features.

    The encoder learns from the first of the agent's losses alone, that of the critics, or of values; an actor learns on
    features that are given (Yarats et al., ICLR 2022). Next clips are encoded by the same weights, without a gradient.
    In an update each clip is moved by a few pixels.

    Args:
        space: What it observes and does; `clip` among it.
        encoder: Makes the encoder, such as `ClipEncoder(...).make`.
        agent: Makes the agent, which observes `features` (D,) float32 instead of the clip, and all else.
        shift: Pixels that clips are moved by at most; 0 leaves them.
    """

    def __init__(
        self,
        space: AgentSpace,
        *,
        encoder: ClipNetworkFactory,
        agent: Callable[[AgentSpace], Agent],
        shift: int = 4,
    ) -> None:
        shape, dtype = space.observations.get(CLIP, ((), ""))
        if len(shape) != 4 or dtype != "uint8":
            raise ValueError(
                f"FromClips: want clips (T, C, H, W) uint8 to observe; {space.source} gives {space.names}"
                if not shape
                else f"FromClips: want clips (T, C, H, W) uint8; those of {space.source} are {dtype} {tuple(shape)}"
            )
        if not 0 <= shift < min(shape[-2:]):
            raise ValueError(f"FromClips: shift must be from 0 to {min(shape[-2:]) - 1} pixels; got {shift}")
        network = encoder(tuple(shape))
        with torch.no_grad():
            size = tuple(network(space.zeros(CLIP, 2)).shape[1:])
        if len(size) != 1:
            raise ValueError(
                f"FromClips: want an encoder that gives features (…, D); got (…, {', '.join(map(str, size))})"
            )
        seen = {FEATURES: (size, "float32")} | {k: v for k, v in space.observations.items() if k != CLIP}
        inner = agent(
            AgentSpace(space.source, space.group, seen, space.num_actions, space.low, space.high, space.extras)
        )
        if not inner.teaches_encoders:
            raise ValueError(
                f"FromClips: want an agent whose first loss teaches an encoder, such as SAC; got {inner.name}"
            )
        self.discrete = inner.discrete  # type: ignore[misc]  # that of the agent
        super().__init__(space, gamma=inner.gamma, n_steps=inner.n_steps, exploration=None, targets=inner.targets)
        self.encoder, self.agent, self.shift = network, inner, shift
        self.exploration = inner.exploration
        self.policy = EncodedPolicy(network, inner.policy)

    @property
    def name(self) -> str:
        """The agent and its encoder."""
        return f"{self.agent.name} ({type(self.encoder).__name__})"

    @property
    def observations(self) -> list[str]:
        """What batches must hold."""
        return [CLIP if name == FEATURES else name for name in self.agent.observations]

    @property
    def metrics(self) -> dict[str, Tensor]:
        """Those of the agent."""
        return self.agent.metrics

    def policy_at(self, risk: RiskLevel) -> TensorDictModuleBase:
        """The greedy policy at another level of risk, over the same weights."""
        return EncodedPolicy(self.encoder, self.agent.policy_at(risk))

    def alternatives(self) -> Mapping[str, Policy]:
        """Those of the agent, behind the encoder."""
        return {name: EncodedPolicy(self.encoder, policy) for name, policy in self.agent.alternatives().items()}

    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        rows, after = batch.copy(), batch.get("next").copy()
        rows.set(FEATURES, self.encoder(random_shift(rows.get(CLIP), self.shift)))
        with torch.no_grad():
            after.set(FEATURES, self.encoder(random_shift(after.get(CLIP), self.shift)))
        return self.agent._losses(rows.set("next", after))

    def _target_pairs(self) -> list[tuple[Tensor, Tensor]]:
        return self.agent._target_pairs()

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        """Those of the agent; the encoder's are with the first, the critics'."""
        groups = {name: list(weights) for name, weights in self.agent.parameter_groups.items()}
        next(iter(groups.values())).extend(weight for weight in self.encoder.parameters() if weight.requires_grad)
        return groups


@final
class EncodedPolicy(TensorDictModuleBase):
    """A policy over features, as one over clips.

    Args:
        encoder: Gives features (…, D) of clips.
        policy: Reads `features`.
    """

    def __init__(self, encoder: nn.Module, policy: TensorDictModuleBase) -> None:
        super().__init__()
        self.encoder, self.policy = encoder, policy
        self.in_keys = [CLIP, *(key for key in policy.in_keys if key != FEATURES)]
        self.out_keys = list(policy.out_keys)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes what the policy writes."""
        features = self.encoder(tensordict.get(CLIP))
        decided = self.policy(tensordict.copy().set(FEATURES, features))
        return tensordict.update(decided.select(*self.out_keys))
