"""R3D-18 as a `VideoEncoder`: torchvision's network with other normalisation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, final
from urllib.parse import urlparse

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from torchrl_gpu.policies.encoders.clips import Projection, VideoEncoder, register_encoder
from torchrl_gpu.policies.weights import float32, register_settings
from torchrl_gpu.system import arguments

_GROUPS = 32
# Of pixels, as torchvision's weights were trained.
_KINETICS_MEAN = (0.43216, 0.394666, 0.37645)
_KINETICS_STD = (0.22803, 0.22145, 0.216989)


@final
class FrozenBatchNorm3d(nn.BatchNorm3d):
    """BatchNorm with frozen running statistics, in training too.

    Scale and shift learn. Batches of a replay are no fair sample of what is seen, and a target network that normalised
    by its own batch would be another function.
    """

    def forward(self, input: Tensor) -> Tensor:
        return batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


def kinetics_weights() -> dict[str, Tensor]:
    """Load weights of torchvision's `r3d_18` after Kinetics-400.

    They come from torch's cache or, the first time, from the network.
    """
    from torchvision.models.video import R3D_18_Weights

    url = R3D_18_Weights.KINETICS400_V1.url
    # All errors of urllib are OSErrors.
    try:
        found: dict[str, Tensor] = torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=False, check_hash=True, weights_only=True
        )
    except (OSError, RuntimeError) as error:
        cache = Path(torch.hub.get_dir()) / "checkpoints"
        place = cache / os.path.basename(urlparse(url).path)
        raise ValueError(
            f"R3D18: no Kinetics weights in torch's cache, nor from the network: {type(error).__name__}: {error}."
            f" Fetch {url} elsewhere and place it at {place}, or name its path: pretrained: PATH"
        ) from error
    return found


@register_encoder
@final
class R3D18(VideoEncoder):
    """18-layer ResNet with 3D convolutions.

    Tran et al., "A Closer Look at Spatiotemporal Convolutions", CVPR 2018. Layers and their names are those of
    `torchvision.models.video.r3d_18`. Its mean over time and space (B, 512) goes through a linear layer, LayerNorm and
    tanh in place of its classes. Frames keep their size, since the network is convolutional: 64×64 are four by four
    places in the last stage, where the 112×112 of Kinetics are seven by seven.

    Args:
        clip_shape, num_features: As in `VideoEncoder`.
        norm: "frozen", see `FrozenBatchNorm3d`, which suits pretrained weights, or "group" for GroupNorm of 32 groups,
            which suits training from random ones.
        checkpointing: As in `VideoEncoder`; the stages are the stem and the four layers.
    """

    least_shape = (2, 3, 16, 16)
    published_weights = staticmethod(kinetics_weights)

    def __init__(
        self,
        clip_shape: Sequence[int],
        num_features: int = 64,
        *,
        norm: Literal["frozen", "group"] = "group",
        checkpointing: bool = False,
    ) -> None:
        super().__init__(clip_shape, num_features, checkpointing=checkpointing)
        arguments.choice("R3D18", "norm", norm, ("frozen", "group"))
        # Only here, as it takes a second to import.
        from torchvision.models.video import r3d_18

        network = r3d_18(weights=None)
        _replace_norms(network, norm)
        self.stem = network.stem
        stages = [getattr(network, f"layer{n}") for n in range(1, 5)]
        self.layers = nn.ModuleList(stages)
        self.projection = Projection(network.fc.in_features, num_features)
        self.mean: Tensor
        self.std: Tensor
        register_settings(self, mean=255 * float32(_KINETICS_MEAN), std=255 * float32(_KINETICS_STD))

    def encode(self, clips: Tensor) -> Tensor:
        pooled = self.pooled(clips)
        return self.projection(pooled)

    def pooled(self, clips: Tensor) -> Tensor:
        """Mean of the last layer (B, 512) for clips (B, T, 3, H, W) uint8.

        On a CPU it does not run under autocast.
        """
        # Channels go before frames in 3D convolutions.
        pixels = clips.transpose(1, 2).to(self.mean.dtype)  # (B, 3, T, H, W)
        mean = self.mean[:, None, None, None]
        std = self.std[:, None, None, None]
        x = (pixels - mean) / std
        # torch 2.15 leaves the bfloat16 gradients of 3D kernels over two frames unwritten on a CPU.
        with torch.autocast("cpu", enabled=False):
            for stage in (self.stem, *self.layers):
                x = self.stage(stage, x)
        return x.mean((2, 3, 4))

    def adapted(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Weights of torchvision's `r3d_18` by the names that they have here.

        The projection is this module's own. Its classes are left out, and so are the running statistics with GroupNorm,
        which has none.
        """
        if "fc.weight" not in state:
            return state
        renamed = {_own_name(name): value for name, value in state.items()}
        mine = self.state_dict()
        own = [name for name in mine if name.startswith("projection.") or "num_batches" in name]
        adapted = {name: mine[name] for name in own}
        for name, value in renamed.items():
            is_class = name.startswith("fc.")
            is_unused_statistic = name not in mine and "running_" in name
            # The number of batches counts nothing here.
            if not is_class and not is_unused_statistic and not name.endswith("num_batches_tracked"):
                adapted[name] = value
        return adapted


def _own_name(name: str) -> str:
    """Name in `R3D18` of a weight of torchvision's: "layer1." is "layers.0."."""
    if not name.startswith("layer"):
        return name
    return f"layers.{int(name[5]) - 1}{name[6:]}"


def _replace_norms(module: nn.Module, norm: str) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm3d):
            channels = child.num_features
            new = FrozenBatchNorm3d(channels) if norm == "frozen" else nn.GroupNorm(_GROUPS, channels)
            setattr(module, name, new)
        else:
            _replace_norms(child, norm)
