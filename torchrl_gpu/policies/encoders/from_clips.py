"""`FromClips`: any agent behind a clip encoder, which learns from the critics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from torchrl_gpu.policies.agents.base import Agent
from torchrl_gpu.policies.indices import indices
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.policies.risk import RiskLevel
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments

CLIP = "clip"
FEATURES = "features"

# Make an encoder of clips (T, C, H, W): `forward` takes them (…, T, C, H, W) uint8 and gives features (…, D).
ClipNetworkFactory = Callable[[tuple[int, ...]], nn.Module]


@final
class FromClips(Agent):
    """Agent behind a clip encoder: it observes features in place of `clip`.

    Clips are (T, C, H, W) uint8. The encoder learns from the first of the agent's losses alone, that of the critics or
    of values; an actor learns on features that it takes as given (Yarats et al., ICLR 2022). Next clips are encoded by
    the same weights, without a gradient. In an update each clip is moved by a few pixels.

    Noisy returns teach an encoder little: with `reconstruction` it also learns to keep what a clip shows, so that a
    small network can draw it from the features (Yarats et al., AAAI 2021).

    Args:
        space: What it observes and does; `clip` among it.
        encoder: Makes the encoder, such as `ClipEncoder(...).make`.
        agent: Makes the agent, which observes `features` (D,) float32 instead of the clip, and all else.
        shift: Pixels that clips are moved by at most; 0 leaves them.
        reconstruction: Weight of the reconstruction error; 0 for no decoder.
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
        if not shape:
            raise ValueError(
                f"FromClips: {space.source} does not observe clips (T, C, H, W) uint8 as {CLIP}: it has {space.names}"
            )
        if len(shape) != 4 or dtype != "uint8":
            raise ValueError(
                f"FromClips: {CLIP} of {space.source} must be (T, C, H, W) uint8, not {dtype} {tuple(shape)}"
            )
        # A clip that is moved by its whole width would be nothing but its edge.
        most_shift = min(shape[-2:]) - 1
        arguments.whole("FromClips", "shift", shift, 0, most_shift)
        self.reconstruction = arguments.number("FromClips", "reconstruction", reconstruction, 0.0)
        # A trial pass tells how many features the encoder gives.
        network = encoder(tuple(shape))
        with torch.no_grad():
            size = tuple(network(space.zeros(CLIP, 2)).shape[1:])
        if len(size) != 1:
            raise ValueError(f"FromClips: the encoder must give features (…, D), not (…, {', '.join(map(str, size))})")
        observations: dict[str, tuple[tuple[int, ...], str]] = {FEATURES: (size, "float32")}
        observations |= space.observations
        del observations[CLIP]
        inner_space = replace(space, observations=observations)
        inner = agent(inner_space)
        if not inner.teaches_encoders:
            raise ValueError(
                f"FromClips: the first loss of {inner.name} teaches an encoder nothing: take an agent such as SAC"
            )
        # Of the agent, where classes of agents have them.
        self.discrete = inner.discrete  # type: ignore[misc]
        self.learns_from_replay = inner.learns_from_replay  # type: ignore[misc]
        super().__init__(space, gamma=inner.gamma, n_steps=inner.n_steps, exploration=None, targets=inner.targets)
        self.encoder = network
        self.agent = inner
        self.shift = shift
        # The agent has made its module of exploration; a second one would anneal an epsilon that nobody reads.
        self.exploration = inner.exploration
        # One encoder for the agent's policy and for its losses.
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
        policy = self.agent.policy_at(risk)
        return EncodedPolicy(self.encoder, policy)

    def alternatives(self) -> Mapping[str, Policy]:
        alternatives = self.agent.alternatives()
        return {name: EncodedPolicy(self.encoder, policy) for name, policy in alternatives.items()}

    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        # Features go into copies: the batch is the caller's, who gets `td_error` alone.
        rows = batch.copy()
        after = batch.get("next").copy()
        clips = random_shift(rows.get(CLIP), self.shift)
        features = self.encoder(clips)
        rows.set(FEATURES, features)
        with torch.no_grad():
            next_clips = random_shift(after.get(CLIP), self.shift)
            after.set(FEATURES, self.encoder(next_clips))
        losses, error = self.agent._losses(rows.set("next", after))
        if self.decoder is not None:
            losses["reconstruction"] = self.reconstruction * self.decoder.missing(features, clips)
        return losses, error

    def _target_pairs(self) -> list[tuple[Tensor, Tensor]]:
        return self.agent._target_pairs()

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        """Weights of the agent and of the decoder.

        The encoder's are in the first group, that of the critics.
        """
        groups = {}
        for name, weights in self.agent.parameter_groups.items():
            groups[name] = list(weights)
        critics = next(iter(groups.values()))
        critics.extend(weight for weight in self.encoder.parameters() if weight.requires_grad)
        if self.decoder is not None:
            groups["reconstruction"] = list(self.decoder.parameters())
        return groups


def random_shift(clips: Tensor, most: int) -> Tensor:
    """Shift each clip (B, T, C, H, W) by whole pixels, all of its frames alike.

    Shifts are drawn uniformly for rows and for columns, at most `most` pixels in either direction; uncovered pixels
    repeat the edge. Yarats et al., "Mastering visual continuous control", ICLR 2022, without their interpolation.

    Rows of pixels are copied as a whole, from clips with wider edges, which is ten times as fast as an index for every
    pixel.
    """
    if most == 0:
        return clips
    num = len(clips)
    channels = clips.shape[1:3].numel()
    height, width = clips.shape[-2:]
    device = clips.device
    wide = width + 2 * most
    padded = clips.new_empty(*clips.shape[:-1], wide)
    padded[..., most:-most] = clips
    padded[..., :most] = clips[..., :1]
    padded[..., -most:] = clips[..., -1:]
    shifts = torch.randint(-most, most + 1, (2, num, 1, 1), device=device, dtype=torch.int64)
    down, right = shifts
    # Rows beyond the border repeat the first or the last one.
    row = (indices(height, device) + down).clamp(0, height - 1)  # (B, 1, H)
    picture = indices(num * channels, device).view(num, channels, 1)
    # Where each row of the result begins among all pixels.
    row_begin = (picture * height + row) * wide
    begin = row_begin + most + right
    rows = padded.flatten().unfold(0, width, 1)
    return rows.index_select(0, begin.flatten()).view(clips.shape)


class ClipDecoder(nn.Module):
    """Decoder of small clips from features: a hidden layer and a linear one.

    It gives the mean colours of 2×2 pixels.

    A last row or column of (T, C, H, W) that makes no pair is left out.
    """

    def __init__(self, num_features: int, clip_shape: tuple[int, ...], hidden: int = 128) -> None:
        super().__init__()
        *leading, height, width = clip_shape
        size = math.prod(leading) * (height // 2) * (width // 2)
        first = nn.Linear(num_features, hidden)
        last = nn.Linear(hidden, size)
        self.net = nn.Sequential(first, nn.ReLU(), last)

    def missing(self, features: Tensor, clips: Tensor) -> Tensor:
        """Reconstruction error, a scalar.

        Squared differences, mean over clips and frames, sum over colours and places.

        Args:
            features: (B, D).
            clips: (B, T, C, H, W) uint8; their colours count from 0 to 1.
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
        others = [key for key in policy.in_keys if key != FEATURES]
        self.in_keys = [CLIP, *others]
        self.out_keys = list(policy.out_keys)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        clip = tensordict.get(CLIP)
        features = self.encoder(clip)
        decided = self.policy(tensordict.copy().set(FEATURES, features))
        outputs = decided.select(*self.out_keys)
        return tensordict.update(outputs)
