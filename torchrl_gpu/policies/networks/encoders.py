"""Encoders from a robot's observation to features, one for each version of the navigation environment."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.weights import register_settings

# Largest usual size of each kind of entry: metres, metres per second, radians per second, newtons.
_GOAL, _DISTANCE, _SPEED, _RADIUS, _TURN, _THRUST = 40.0, 20.0, 4.0, 4.0, 1.0, 1000.0


@final
class UnicycleEncoder(nn.Module):
    """312 features of a unicycle's observation, 39 numbers: itself and its goal, five static and five moving objects.

    Numbers are divided by their usual size first, where `normalised`.
    """

    in_keys: ClassVar = ["observation"]
    num_inputs, num_features, num_hidden = 39, 312, 156

    def __init__(self, normalised: bool = True) -> None:
        super().__init__()
        self.robot, self.static, self.moving = nn.Linear(4, 32), nn.Linear(15, 120), nn.Linear(20, 160)
        sizes = [_GOAL] * 2 + [_SPEED] * 2 + [_DISTANCE, _DISTANCE, _RADIUS] * 5
        sizes += [_DISTANCE, _DISTANCE, _SPEED, _SPEED] * 5
        self.size: Tensor
        register_settings(self, size=sizes if normalised else [1.0] * len(sizes))

    def forward(self, observation: Tensor) -> Tensor:
        """Features (…, 312) of observations (…, 39)."""
        parts = (observation.to(self.size.dtype) / self.size).split([4, 15, 20], -1)
        encoders = (self.robot, self.static, self.moving)
        return relu(torch.cat([encode(part) for encode, part in zip(encoders, parts, strict=True)], -1), inplace=True)


@final
class VesselEncoder(nn.Module):
    """256 features of a vessel's observation, 32 numbers: itself, its goal, and up to five objects behind one encoder.

    Numbers are divided by their usual size first, where `normalised`: forces are 1000 times the others.
    """

    in_keys: ClassVar = ["observation", "object_mask"]
    num_inputs, num_features, num_hidden = 32, 256, 128

    def __init__(self, normalised: bool = True) -> None:
        super().__init__()
        self.robot, self.object = nn.Linear(7, 56), nn.Linear(5, 40)
        sizes = [_GOAL] * 2 + [_SPEED] * 2 + [_TURN, _THRUST, _THRUST]
        sizes += [_DISTANCE, _DISTANCE, _SPEED, _SPEED, _RADIUS] * 5
        self.size: Tensor
        register_settings(self, size=sizes if normalised else [1.0] * len(sizes))

    def forward(self, observation: Tensor, object_mask: Tensor) -> Tensor:
        """Features (…, 256) of observations (…, 32), with `object_mask` (…, 5) bool: the objects that are there."""
        robot, objects = (observation.to(self.size.dtype) / self.size).split([7, 25], -1)
        there = object_mask[..., None]
        features = self.object(torch.where(there, objects.unflatten(-1, (5, 5)), 0.0))  # (…, 5, 40)
        features = features * there.to(features.dtype)  # three times as fast as `where`, and as good: all are finite
        return relu(torch.cat([self.robot(robot), features.flatten(-2)], -1), inplace=True)


Encoder = UnicycleEncoder | VesselEncoder


def encoder_of(space: AgentSpace, normalised: bool = True) -> Encoder:
    """The encoder of a space, selected by the length of its `observation`."""
    size = space.size_of("observation")
    for encoder in (UnicycleEncoder, VesselEncoder):
        if size == encoder.num_inputs:
            return encoder(normalised)
    raise ValueError(f"encoder_of: want observations of 39 or 32 numbers; those of {space.source} have {size}")
