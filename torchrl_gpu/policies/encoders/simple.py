"""Small convolutional encoders of clips, for learning while acting on a CPU.

All convolutions are as large as their stride in space, so that each is one matrix product over patches with channels
last. On a CPU forward and backward take 0.6 of the time of the same layers through `conv2d` with channels last, and a
fifth of that of overlapping kernels of stride 2; see docs/encoders.md. bfloat16 pays on a GPU, and on a CPU
only if that has instructions for it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import conv3d, linear

from torchrl_gpu.policies.encoders.clips import Projection, VideoEncoder, register_encoder
from torchrl_gpu.system import arguments
from torchrl_gpu.system.tracing import is_traced

# Pixels of a patch: four bytes of a row are moved as one number.
_PATCH = 4
# Pixels that one place of the last map stands for.
_CELL = 16
_CENTRE = 127.5
_SCALE = 1 / 255
# Pixels at once on a CPU: the allocator keeps blocks of this size, see `allocator`.
_PIXELS_AT_ONCE = 1 << 22


class _PatchEncoder(VideoEncoder):
    """Convolutions over patches, then a projection of all that is left."""

    def encode(self, clips: Tensor) -> Tensor:
        if clips.device.type != "cpu" or is_traced():
            return self.stage(self._encode, clips)
        number = math.ceil(clips.numel() / _PIXELS_AT_ONCE)
        parts = clips.chunk(max(1, number))
        return torch.cat([self.stage(self._encode, part) for part in parts])

    @abstractmethod
    def _encode(self, clips: Tensor) -> Tensor:
        """Features (B, F) of clips (B, T, 3, H, W) that are few enough."""


@register_encoder
@final
class Simple2DCNN(_PatchEncoder):
    """Three 2D convolutions on each frame and its difference from the one before.

    A single frame shows no motion, and features of two frames show it badly once they are coarse; the difference shows
    it while pixels are still fine. Each of the T-1 frames with a frame before it is encoded by itself, with the same
    weights: (6, H, W) to 16 channels of patches of 4×4 pixels, to 32 and to 32, each halving the sides. The features of
    all frames, one after the other, go through a linear layer, LayerNorm and tanh.

    H and W are multiples of 16; arguments as in `VideoEncoder`.
    """

    least_shape = (2, 3, 16, 16)

    def __init__(self, clip_shape: Sequence[int], num_features: int = 64, *, checkpointing: bool = False) -> None:
        super().__init__(clip_shape, num_features, checkpointing=checkpointing)
        self.stem = nn.Conv2d(6, 16, _PATCH, _PATCH)
        self.second = nn.Conv2d(16, 32, 2, 2)
        self.third = nn.Conv2d(32, 32, 2, 2)
        num_inputs = (self.clip_shape[0] - 1) * 32 * _cells(self)
        self.projection = Projection(num_inputs, num_features)

    def _encode(self, clips: Tensor) -> Tensor:
        frame, difference = self.stem.weight.split(3, 1)  # (16, 3, 4, 4)
        # w·frame + v·(frame - before) = (w + v)·frame - v·before: no differences are stored.
        weight = torch.stack([-difference, frame + difference], 2)  # (16, 3, 2, 4, 4)
        x = _pixel_convolution(clips, weight, self.stem.bias)
        x = _convolution(x, self.second)
        x = _convolution(x, self.third)
        return self.projection(x.flatten(1))


@register_encoder
@final
class Simple3DCNN(_PatchEncoder):
    """Three 3D convolutions, over three frames, over two and over one.

    Kernels are (3, 4, 4), (2, 2, 2) and (1, 2, 2), strides the same in space and 1 in time, channels 16, 32 and 32. The
    mean over the remaining frames goes through a linear layer, LayerNorm and tanh.

    H and W are multiples of 16; arguments as in `VideoEncoder`.
    """

    least_shape = (4, 3, 16, 16)

    def __init__(self, clip_shape: Sequence[int], num_features: int = 64, *, checkpointing: bool = False) -> None:
        super().__init__(clip_shape, num_features, checkpointing=checkpointing)
        kernel = (3, _PATCH, _PATCH)
        stride = (1, _PATCH, _PATCH)
        self.stem = nn.Conv3d(3, 16, kernel, stride)
        self.second = nn.Conv3d(16, 32, 2, (1, 2, 2))
        self.third = nn.Conv3d(32, 32, (1, 2, 2), (1, 2, 2))
        self.projection = Projection(32 * _cells(self), num_features)

    def _encode(self, clips: Tensor) -> Tensor:
        x = _pixel_convolution(clips, self.stem.weight, self.stem.bias)
        x = _convolution(x, self.second)
        x = _convolution(x, self.third)
        pooled = x.mean(1)
        return self.projection(pooled.flatten(1))


def _cells(encoder: VideoEncoder) -> int:
    *_, height, width = encoder.clip_shape
    where = type(encoder).__name__
    for name, side in (("height", height), ("width", width)):
        if side % _CELL:
            arguments.refuse(where, f"{name} of the clip", f"a multiple of {_CELL}", side)
    return height // _CELL * (width // _CELL)


def _pixel_convolution(clips: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Rectified convolution of pixels, centred and scaled to [-0.5, 0.5], by patches.

    It is a matrix product of patches, and what takes time is to bring their pixels together. So four bytes of a row are
    moved as one number.

    Args:
        clips: (B, T, 3, H, W) uint8.
        weight: (C, 3, t, 4, 4).
        bias: (C,).

    Returns:
        (B, T-t+1, P, C) for the P patches of a frame: cells of 16×16 pixels row by row, in each its four quarters, in
        each of those its four patches. So what a later convolution puts together already lies next to each other.
    """
    if torch.compiler.is_exporting():
        return _plain_pixel_convolution(clips, weight, bias)
    batch, frames, _, height, width = clips.shape
    taken = weight.shape[2]
    rows = height // _CELL
    columns = width // _CELL
    kept = frames - taken + 1
    pixels = clips.contiguous()
    words = pixels.view(torch.int32)
    words_per_row = width // _PATCH
    words = words.view(batch, frames, 3, rows, 2, 2, _PATCH, words_per_row)
    # (B, T-t+1, rows, 2, 2, t, 3, 4, W/4), where t frames are taken at a time.
    windows = words.unfold(1, taken, 1).permute(0, 1, 3, 4, 5, 8, 2, 6, 7)
    # First whole rows are moved, then words within few rows: half the time of one copy.
    num_rows = batch * kept * rows
    num_words = taken * 3 * _PATCH
    windows = windows.reshape(num_rows, 2, 2, num_words, columns, 2, 2)
    windows = windows.permute(0, 4, 1, 5, 2, 6, 3)
    patches = windows.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    num_patches = 16 * rows * columns
    patches = patches.view(batch, kept, num_patches, num_words * _PATCH)
    flat = weight.transpose(1, 2).flatten(1) * _SCALE
    assert bias is not None
    # Pixels are centred by the bias: to subtract the centre from each of them would be one more pass over all.
    shift = bias - _CENTRE * flat.sum(1)
    return linear(patches.to(flat.dtype), flat, shift).relu_()


def _plain_pixel_convolution(clips: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`_pixel_convolution` by torch's own operator.

    For formats that cannot move four bytes as one number.
    """
    pixels = (clips.to(weight.dtype) - _CENTRE) * _SCALE
    stride = (1, _PATCH, _PATCH)
    maps = conv3d(pixels.transpose(1, 2), weight, bias, stride).relu()
    # Rows and columns of cells, quarters and patches, behind (B, C, T-t+1).
    quarters = maps.unflatten(4, (-1, 2, 2))
    quarters = quarters.unflatten(3, (-1, 2, 2))
    return quarters.permute(0, 2, 3, 6, 4, 7, 5, 8, 1).flatten(2, 7)


def _convolution(x: Tensor, layer: nn.Conv2d | nn.Conv3d) -> Tensor:
    """Rectified convolution (B, T-t+1, P/4, D) of (B, T, P, C) by kernels (t, 2, 2).

    Each four places in a row go together.
    """
    weight = layer.weight
    if weight.ndim == 4:
        weight = weight[:, :, None]
    taken = weight.shape[2]
    num_cells = x.shape[2] // 4
    x = x.unflatten(2, (num_cells, 4)).flatten(3)
    if taken > 1:
        kept = x.shape[1] - taken + 1
        frames = [x[:, i : i + kept] for i in range(taken)]
        x = torch.cat(frames, 3)
    flat = weight.permute(0, 2, 3, 4, 1).flatten(1)
    out = linear(x, flat, layer.bias)
    return out.relu_()
