"""How large an encoder of clips is, and how much it computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from torchrl_gpu.policies.video.clips import VideoEncoder


@dataclass(frozen=True)
class EncoderCost:
    """Weights that learn, and floating point operations of a forward pass over one clip, two for each multiplication.

    Only matrix products, convolutions and attention are counted.
    """

    num_parameters: int
    flops: int


def cost_of(encoder: VideoEncoder) -> EncoderCost:
    """What an encoder costs, by one forward pass; free of charge for one that was made on the device "meta"."""
    weights = [weight for weight in encoder.parameters() if weight.requires_grad]
    clip = torch.zeros(encoder.clip_shape, dtype=torch.uint8, device=weights[0].device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        encoder(clip)
    return EncoderCost(sum(weight.numel() for weight in weights), counter.get_total_flops())
