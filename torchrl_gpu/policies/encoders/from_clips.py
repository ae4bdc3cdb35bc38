"""`FromClips`: any agent behind one clip encoder, which learns from the loss of the critics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from torchrl_gpu.policies.agents.base import Agent
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.policies.risk import RiskLevel
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments

CLIP = "clip"
FEATURES = "features"

ClipNetworkFactory = Callable[[tuple[int, ...]], nn.Module]
"""Makes an encoder of clips (T, C, H, W): `forward` takes them (…, T, C, H, W) uint8 and gives features (…, D)."""


@final
class FromClips(Agent):
    """Agent behind a clip encoder: it observes feature vectors in place of `clip`, uint8 (T, C, H, W).

    The encoder learns from the first of the agent's losses alone, that of the critics, or of values; an actor learns on
    features that are given (Yarats et al., ICLR 2022). Next clips are encoded by the same weights, without a gradient.
    In an update each clip is moved by a few pixels. Where returns are noisy, what they teach an encoder is little: with
    `reconstruction` it learns besides to keep what a clip shows, so that a small network can draw it from the features
    (Yarats et al., AAAI 2021).

    Args:
        space: What it observes and does; `clip` among it.
        encoder: Makes the encoder, such as `ClipEncoder(...).make`.
        agent: Makes the agent, which observes `features` (D,) float32 instead of the clip, and all else.
        shift: Pixels that clips are moved by at most; 0 leaves them.
        reconstruction: Weight of what is missing in the clips that are drawn from features; 0 draws none.
    """

    def __init__(
        self,
        space: AgentSpace,
        *,
        encoder: ClipNetworkFactory,
        agent: Callable[[AgentSpace], Agent],
        shift: int = 4,
        reconstruction: float = 0.0,
    ) -> None:
        shape, dtype = space.observations.get(CLIP, ((), ""))
        if len(shape) != 4 or dtype != "uint8":
            raise ValueError(
                f"FromClips: want clips (T, C, H, W) uint8 to observe; {space.source} gives {space.names}"
                if not shape
                else f"FromClips: want clips (T, C, H, W) uint8; those of {space.source} are {dtype} {tuple(shape)}"
            )
        arguments.whole("FromClips", "shift", shift, 0, min(shape[-2:]) - 1)
        self.reconstruction = arguments.number("FromClips", "reconstruction", reconstruction, 0.0)
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
        self.learns_from_replay = inner.learns_from_replay  # type: ignore[misc]
        super().__init__(space, gamma=inner.gamma, n_steps=inner.n_steps, exploration=None, targets=inner.targets)
        self.encoder = network
        self.agent = inner
        self.shift = shift
        self.exploration = inner.exploration
        self.policy = EncodedPolicy(network, inner.policy)
        self.decoder = ClipDecoder(size[0], tuple(shape)) if self.reconstruction else None

    @property
    def name(self) -> str:
        return f"{self.agent.name} ({type(self.encoder).__name__})"

    @property
    def observations(self) -> list[str]:
        return [CLIP if name == FEATURES else name for name in self.agent.observations]

    @property
    def metrics(self) -> dict[str, Tensor]:
        return self.agent.metrics

    @property
    def learned_settings(self) -> Sequence[str]:
        return self.agent.learned_settings

    @property
    def batch_keys(self) -> list[NestedKey]:
        clips: dict[NestedKey, NestedKey] = {FEATURES: CLIP, ("next", FEATURES): ("next", CLIP)}
        return [clips.get(key, key) for key in self.agent.batch_keys]

    @property
    def targets_update_every_step(self) -> bool:
        return self.agent.targets_update_every_step

    def anneal(self, frame: int) -> None:
        self.agent.anneal(frame)

    def update_targets(self, update: int) -> None:
        self.agent.update_targets(update)

    def reset_targets(self) -> None:
        self.agent.reset_targets()

    def policy_at(self, risk: RiskLevel) -> TensorDictModuleBase:
        return EncodedPolicy(self.encoder, self.agent.policy_at(risk))

    def alternatives(self) -> Mapping[str, Policy]:
        return {name: EncodedPolicy(self.encoder, policy) for name, policy in self.agent.alternatives().items()}

    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        rows = batch.copy()
        after = batch.get("next").copy()
        clips = random_shift(rows.get(CLIP), self.shift)
        rows.set(FEATURES, features := self.encoder(clips))
        with torch.no_grad():
            after.set(FEATURES, self.encoder(random_shift(after.get(CLIP), self.shift)))
        losses, error = self.agent._losses(rows.set("next", after))
        if self.decoder is not None:
            losses["reconstruction"] = self.reconstruction * self.decoder.missing(features, clips)
        return losses, error

    def _target_pairs(self) -> list[tuple[Tensor, Tensor]]:
        return self.agent._target_pairs()

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        """Weights of the agent and of the decoder; the encoder's are in the first group, the critics'."""
        groups = {name: list(weights) for name, weights in self.agent.parameter_groups.items()}
        next(iter(groups.values())).extend(weight for weight in self.encoder.parameters() if weight.requires_grad)
        return groups if self.decoder is None else {**groups, "reconstruction": list(self.decoder.parameters())}


def random_shift(clips: Tensor, most: int) -> Tensor:
    """Clips (B, T, C, H, W), each shifted by whole pixels, all of its frames alike; uncovered pixels repeat the edge.

    Yarats et al., "Mastering visual continuous control", ICLR 2022, without their interpolation: shifts are whole,
    drawn uniformly for rows and for columns, of at most `most` pixels in either direction.
    """
    if most == 0:
        return clips
    num, channels, (height, width) = len(clips), clips.shape[1:3].numel(), clips.shape[-2:]
    device = clips.device
    wide = width + 2 * most
    padded = clips.new_empty(*clips.shape[:-1], wide)
    padded[..., most:-most], padded[..., :most], padded[..., -most:] = clips, clips[..., :1], clips[..., -1:]
    down, right = torch.randint(-most, most + 1, (2, num, 1, 1), device=device, dtype=torch.int64)
    row = (torch.arange(height, device=device, dtype=torch.int64) + down).clamp(0, height - 1)  # (B, 1, H)
    picture = torch.arange(num * channels, device=device, dtype=torch.int64).view(num, channels, 1)
    begin = (picture * height + row) * wide + most + right  # of each row of the result, in all pixels
    rows = padded.flatten().unfold(0, width, 1)
    return rows.index_select(0, begin.flatten()).view(clips.shape)  # rows as a whole: ten times as fast as by pixels


class ClipDecoder(nn.Module):
    """Decoder of small clips from features: a hidden layer, and a linear one for the mean colours of 2×2 pixels.

    A last row or column of (T, C, H, W) that makes no pair is left out.
    """

    def __init__(self, num_features: int, clip_shape: tuple[int, ...], hidden: int = 128) -> None:
        super().__init__()
        *leading, height, width = clip_shape
        size = math.prod(leading) * (height // 2) * (width // 2)
        self.net = nn.Sequential(nn.Linear(num_features, hidden), nn.ReLU(), nn.Linear(hidden, size))

    def missing(self, features: Tensor, clips: Tensor) -> Tensor:
        """Reconstruction error, a scalar: squared differences, mean over clips and frames, sum over colours and places.

        Clips (B, T, C, H, W) are uint8; their colours count from 0 to 1.
        """
        small = avg_pool2d(clips.flatten(0, 1).float(), 2) / 255  # (B·T, C, H/2, W/2)
        drawn = self.net(features).float().view(small.shape)
        return (drawn - small).square().sum() / len(small)


@final
class EncodedPolicy(TensorDictModuleBase):
    """Policy over clips: an encoder followed by a policy over `features` (…, D)."""

    def __init__(self, encoder: nn.Module, policy: TensorDictModuleBase) -> None:
        super().__init__()
        self.encoder = encoder
        self.policy = policy
        self.in_keys = [CLIP, *(key for key in policy.in_keys if key != FEATURES)]
        self.out_keys = list(policy.out_keys)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        features = self.encoder(tensordict.get(CLIP))
        decided = self.policy(tensordict.copy().set(FEATURES, features))
        return tensordict.update(decided.select(*self.out_keys))
