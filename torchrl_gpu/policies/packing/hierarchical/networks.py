"""The two networks of the hierarchical packer: a U-Net that scores placements, a ResNet-18 that scores items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from torchrl_gpu.system import arguments

ENCODERS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


class PlacementUNet(nn.Module):
    """A score for every place of maps, by a U-Net with the encoder of a ResNet.

    Ronneberger et al. 2015; the network is that of segmentation-models-pytorch, with groups normalised instead of
    batches: Q-learning sees batches of another distribution than it acts on. The last layer starts at zero. `channels`
    are those of the decoder, from the coarsest map to the finest; as many as the encoder has steps.
    """

    def __init__(self, num_planes: int, encoder: str = "resnet18", channels: Sequence[int] = (64, 32, 16)) -> None:
        super().__init__()
        depth = len(channels)
        arguments.choice("PlacementUNet", "encoder", encoder, ENCODERS)
        if not 2 <= depth <= 5:
            raise ValueError(f"PlacementUNet: channels must be 2 to 5 widths; got {list(channels)}")
        for width in channels:
            arguments.whole("PlacementUNet", "channels", width, 1, 4096)
        from segmentation_models_pytorch import Unet  # takes seconds

        net = Unet(
            encoder,
            encoder_weights=None,
            in_channels=num_planes,
            classes=1,
            encoder_depth=depth,
            decoder_channels=list(channels),
        )
        for name in ("layer1", "layer2", "layer3", "layer4")[depth - 1 :]:
            setattr(net.encoder, name, nn.Identity())  # made, and never used
        self.net: nn.Module = _grouped(net)
        _zero(net.segmentation_head[0])
        self.multiple = 2**depth
        self.to(memory_format=torch.channels_last)

    def forward(self, planes: Tensor) -> Tensor:
        """Scores (B, Gx, Gy) float32 of planes (B, C, Gx, Gy) float32."""
        gx, gy = planes.shape[-2:]
        padded = pad(planes, (0, -gy % self.multiple, 0, -gx % self.multiple))
        scores = self.net(padded.contiguous(memory_format=torch.channels_last))
        return scores[:, 0, :gx, :gy].float()


class ViewResNet(nn.Module):
    """A score for every stack of views, by torchvision's ResNet-18 with groups normalised; starts at zero.

    He et al. 2016.
    """

    def __init__(self, num_views: int) -> None:
        super().__init__()
        from torchvision.models import resnet18

        net = resnet18(num_classes=1, norm_layer=_group_norm)
        net.conv1 = nn.Conv2d(num_views, 64, 7, 2, 3, bias=False)
        _zero(net.fc)
        self.net = net
        self.to(memory_format=torch.channels_last)

    def forward(self, views: Tensor) -> Tensor:
        """Scores (B,) float32 of views (B, C, V, V) float32."""
        return self.net(views.contiguous(memory_format=torch.channels_last))[:, 0].float()


class StateValue(nn.Module):
    """State value, whatever action follows, from features of the pile and of the visible items; starts at zero."""

    num_features = 10

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        last = _zero(nn.Linear(width, 1))
        hidden = [nn.Linear(self.num_features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        self.net = nn.Sequential(*hidden, last)

    def forward(self, features: Tensor) -> Tensor:
        """Values (B,) float32 of features (B, 10) float32."""
        return self.net(features)[:, 0].float()


def _zero(layer: Any) -> nn.Module:
    for each in layer.parameters():
        nn.init.zeros_(each)
    return layer


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(max(1, channels // 8), channels)


def _grouped(module: nn.Module) -> nn.Module:
    """The module with every batch normalisation replaced; in place."""
    for name, child in module.named_children():
        setattr(module, name, _group_norm(child.num_features) if isinstance(child, nn.BatchNorm2d) else _grouped(child))
    return module
