"""Clips and encoders that the tests of this folder share."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torchvision.models.video import r3d_18

from torchrl_gpu.policies import ClipEncoder
from torchrl_gpu.policies.encoders.clips import ClipShape

SHAPES: dict[str, ClipShape] = {
    "simple2dcnn": (4, 3, 16, 32),
    "simple3dcnn": (4, 3, 16, 32),
    "r3d18": (2, 3, 16, 16),
    "timesformer": (3, 3, 16, 8),
}


def random_clips(num: int, shape: ClipShape) -> Tensor:
    return torch.randint(0, 256, (num, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def made(settings: ClipEncoder, shape: ClipShape) -> nn.Module:
    torch.manual_seed(0)
    return settings.make(shape)


@torch.no_grad()
def scramble(module: nn.Module) -> nn.Module:
    """Change every weight and statistic of a module.

    None is then zero or one by chance.
    """
    generator = torch.Generator().manual_seed(1)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
            tensor += noise.abs() * 0.3 if "running_var" in name else noise * 0.05
    return module


@cache
def torchvisions() -> nn.Module:
    return scramble(r3d_18(weights=None))
