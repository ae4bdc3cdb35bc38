"""Networks of the hierarchical packer: U-Net for placements, ResNet-18 for items."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from torchrl_gpu.system import arguments

ENCODERS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
_LAYERS = ("layer1", "layer2", "layer3", "layer4")
_MOST_CHANNELS = 4096


class PlacementUNet(nn.Module):
    """Scores of all places of maps, by a U-Net with the encoder of a ResNet.

    Ronneberger et al. 2015; the network is that of segmentation-models-pytorch, with groups normalised instead of
    batches: Q-learning sees batches of another distribution than it acts on. The last layer starts at zero. `channels`
    are those of the decoder, from the coarsest map to the finest, one for each step of the encoder.
    """

    def __init__(self, num_planes: int, encoder: str = "resnet18", channels: Sequence[int] = (64, 32, 16)) -> None:
        super().__init__()
        depth = len(channels)
        arguments.choice("PlacementUNet", "encoder", encoder, ENCODERS)
        if not 2 <= depth <= 5:
            raise ValueError(f"PlacementUNet: channels must be 2 to 5 widths, not {list(channels)}")
        for width in channels:
            arguments.whole("PlacementUNet", "channels", width, 1, _MOST_CHANNELS)
        # Only here, as it takes seconds to import.
        from segmentation_models_pytorch import Unet

        net = Unet(
            encoder,
            encoder_weights=None,
            in_channels=num_planes,
            classes=1,
            encoder_depth=depth,
            decoder_channels=list(channels),
        )
        # The encoder makes all its layers, and uses the first ones.
        for name in _LAYERS[depth - 1 :]:
            setattr(net.encoder, name, nn.Identity())
        self.net: nn.Module = _replace_batch_norms(net)
        _set_zero(net.segmentation_head[0])
        self.multiple = 2**depth
        self.to(memory_format=torch.channels_last)

    def forward(self, planes: Tensor) -> Tensor:
        """Scores (B, Gx, Gy) float32 of planes (B, C, Gx, Gy) float32."""
        gx, gy = planes.shape[-2:]
        # The encoder halves maps several times: their sides must be multiples of that.
        more_x = -gx % self.multiple
        more_y = -gy % self.multiple
        padded = pad(planes, (0, more_y, 0, more_x))
        scores = self.net(padded.contiguous(memory_format=torch.channels_last))
        return scores[:, 0, :gx, :gy].float()


class ViewResNet(nn.Module):
    """Scores of stacks of views, by torchvision's ResNet-18.

    He et al. 2016, with groups normalised. Scores start at zero.
    """

    def __init__(self, num_views: int) -> None:
        super().__init__()
        from torchvision.models import resnet18

        net = resnet18(num_classes=1, norm_layer=_group_norm)
        # Views take the place of the three colours of pictures.
        net.conv1 = nn.Conv2d(num_views, 64, 7, 2, 3, bias=False)
        _set_zero(net.fc)
        self.net = net
        self.to(memory_format=torch.channels_last)

    def forward(self, views: Tensor) -> Tensor:
        """Scores (B,) float32 of views (B, C, V, V) float32."""
        scores = self.net(views.contiguous(memory_format=torch.channels_last))
        return scores[:, 0].float()


class StateValue(nn.Module):
    """State value, whatever action follows, which starts at zero.

    It is computed from features of the pile and of the visible items.
    """

    num_features = 10

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        last = _set_zero(nn.Linear(width, 1))
        first = nn.Linear(self.num_features, width)
        hidden = [first, nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        self.net = nn.Sequential(*hidden, last)

    def forward(self, features: Tensor) -> Tensor:
        """Values (B,) float32 of features (B, 10) float32."""
        values = self.net(features)[:, 0]
        return values.float()


def _set_zero(layer: nn.Module) -> nn.Module:
    """Set all weights of a layer to zero."""
    for each in layer.parameters():
        nn.init.zeros_(each)
    return layer


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(max(1, channels // 8), channels)


def _replace_batch_norms(module: nn.Module) -> nn.Module:
    """Replace every batch normalisation of a module in place."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, _group_norm(child.num_features))
        else:
            _replace_batch_norms(child)
    return module
