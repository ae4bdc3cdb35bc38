"""Counts of weights and operations against published ones, and against counts by hand."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models.video import R3D_18_Weights, r3d_18

from torchrl_gpu.policies import ClipEncoder
from torchrl_gpu.policies.encoders.clips import ClipShape, VideoEncoder


class Cost(NamedTuple):
    """Weights that learn, and operations of the matrix products of a forward pass over one clip."""

    num_parameters: int
    flops: int


def cost_of(encoder: VideoEncoder) -> Cost:
    weights = [weight for weight in encoder.parameters() if weight.requires_grad]
    clip = torch.zeros(encoder.clip_shape, dtype=torch.uint8, device=weights[0].device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        encoder(clip)
    return Cost(sum(weight.numel() for weight in weights), counter.get_total_flops())


def on_meta(settings: ClipEncoder, shape: ClipShape) -> VideoEncoder:
    with torch.device("meta"):
        return settings.make(shape)


def test_r3d_18_costs_what_torchvision_says() -> None:
    cost = cost_of(on_meta(ClipEncoder("r3d18"), (16, 3, 112, 112)))
    with torch.device("meta"):
        classes = r3d_18(weights=None).fc
    head = nn.Linear(512, 64).weight.numel() + 3 * 64  # the projection that stands in the place of the classes
    wanted = R3D_18_Weights.KINETICS400_V1.meta
    assert cost.num_parameters == wanted["num_params"] - sum(weight.numel() for weight in classes.parameters()) + head
    assert cost.flops / 2e9 == pytest.approx(wanted["_ops"], abs=0.01)


def test_the_small_one_costs_what_is_counted_by_hand() -> None:
    cost = cost_of(ClipEncoder().make((4, 3, 32, 32)))
    weights = [
        (16, 6 * 16),
        (32, 16 * 4),
        (32, 32 * 4),
        (64, 3 * 32 * 4),
    ]  # outputs, inputs; 3 pairs of frames, 4 places
    biases = [outputs for outputs, _ in weights]
    assert cost.num_parameters == sum(outputs * inputs for outputs, inputs in weights) + sum(biases) + 2 * 64
    rows = [3 * 64, 3 * 16, 3 * 4, 1]
    assert cost.flops == 2 * sum(n * outputs * inputs for n, (outputs, inputs) in zip(rows, weights, strict=True))


def test_attention_costs_what_is_counted_by_hand() -> None:
    cost = cost_of(on_meta(ClipEncoder("timesformer"), (2, 3, 16, 16)))  # torch 2.11 does not count it on a CPU
    frames, places, width, depth = 2, 4, 128, 4
    tokens, copies = frames * places, frames * (1 + places)
    linear = 2 * width**2 * (tokens * (4 + 1) + copies * 4 + (1 + tokens) * 8)
    attention = 4 * width * (places * frames**2 + frames * (1 + places) ** 2)
    embedding, head = 2 * tokens * width * 3 * 64, 2 * width * 64
    assert cost == Cost(cost.num_parameters, depth * (linear + attention) + embedding + head)
