"""TimeSformer: a vision transformer over clips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.nn.init import trunc_normal_

from torchrl_gpu.policies.encoders.clips import Projection, VideoEncoder, register_encoder
from torchrl_gpu.policies.weights import float32_zeros
from torchrl_gpu.system import arguments

# Of a pixel, as released with the paper.
_CENTRE = 255 * 0.45
_SPREAD = 255 * 0.225
_EPS = 1e-6


# Channels, blocks and attention heads. Base is the paper's, small that of ViT-S; tiny can learn while acting.
SIZES = {"tiny": (128, 4, 4), "small": (384, 12, 6), "base": (768, 12, 12)}


@register_encoder
@final
class TimeSformer(VideoEncoder):
    """Vision transformer whose blocks attend over time, then over space.

    This is the "divided" attention of Bertasius et al., "Is Space-Time Attention All You Need for Video
    Understanding?", ICML 2021. Each frame is cut into patches; each patch is a linear token plus a learned position in
    space and one in time. In a block a token attends to those of its place in all frames, then to those of its frame
    and to the class token, which every frame has a copy of; the class token becomes the mean of its copies. Its last
    value goes through LayerNorm, then a linear layer, LayerNorm and tanh.

    Departs from the released code: no drop path; linear layers start as torch's own do, which is as large in base and
    larger in narrower ones; the layer behind attention over time does not start at zero, as it does there, from a
    network of images.

    Args:
        clip_shape: (T, 3, H, W), H and W multiples of the patch.
        num_features: F.
        size: One of `SIZES`.
        patch: P, pixels on each side of a patch; the paper has 16 for 224×224.
        checkpointing: As in `VideoEncoder`; the stages are the blocks.
    """

    least_shape = (1, 3, 1, 1)

    def __init__(
        self,
        clip_shape: Sequence[int],
        num_features: int = 64,
        *,
        size: Literal["tiny", "small", "base"] = "tiny",
        patch: int = 8,
        checkpointing: bool = False,
    ) -> None:
        super().__init__(clip_shape, num_features, checkpointing=checkpointing)
        width, depth, num_heads = SIZES[arguments.choice("TimeSformer", "size", size, SIZES)]
        frames, _, *sides = self.clip_shape
        self.patch = arguments.whole("TimeSformer", "patch", patch, 1, min(sides))
        if any(side % self.patch for side in sides):
            arguments.refuse("TimeSformer", f"sides of frames {tuple(sides)}", "multiples of the patch", self.patch)
        rows = sides[0] // self.patch
        columns = sides[1] // self.patch
        num_patches = rows * columns
        self.embedding = nn.Conv2d(3, width, self.patch, self.patch)
        no_token = float32_zeros(width)
        self.class_token = nn.Parameter(no_token)
        # The class token's position comes first.
        self.space = nn.Parameter(float32_zeros(1 + num_patches, width))
        no_time = float32_zeros(frames, width)
        self.time = nn.Parameter(no_time)
        blocks = [Block(frames, width, num_heads) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width, _EPS)
        for tokens in (self.class_token, self.space, self.time):
            trunc_normal_(tokens, std=0.02)
        self.projection = Projection(width, num_features)

    def encode(self, clips: Tensor) -> Tensor:
        first = self.class_token + self.space[0]
        tokens = self._tokens(clips)
        first = first.expand(clips.shape[0], 1, -1)
        frames_and_patches = tokens.shape[1:3]
        for block in self.blocks:
            # One tensor of all tokens between blocks, so that a checkpoint keeps one.
            packed = torch.cat([first, tokens.flatten(1, 2)], 1)
            packed = self.stage(block, packed)
            first = packed[:, :1]
            tokens = packed[:, 1:].unflatten(1, frames_and_patches)
        normed = self.norm(first.squeeze(1))
        return self.projection(normed)

    def _tokens(self, clips: Tensor) -> Tensor:
        """Tokens (B, T, S, D) of the patches."""
        batch, frames, colours, height, width = clips.shape
        side = self.patch
        rows = height // side
        columns = width // side
        cut = clips.view(batch, frames, colours, rows, side, columns, side)
        cut = cut.permute(0, 1, 3, 5, 2, 4, 6)
        numbers_per_patch = colours * side**2
        patches = cut.reshape(batch, frames, rows * columns, numbers_per_patch)
        pixels = (patches.to(self.space.dtype) - _CENTRE) / _SPREAD
        # The same as the convolution, as patches do not overlap, and one product of matrices.
        tokens = linear(pixels, self.embedding.weight.flatten(1), self.embedding.bias)
        tokens_in_space = tokens + self.space[1:]
        return tokens_in_space + self.time[:, None]


class Attention(nn.Module):
    """Multi-head self-attention over the tokens of a sequence."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention output (B, L, D) of tokens (B, L, D)."""
        projected = self.qkv(x)
        heads = projected.unflatten(-1, (3, self.num_heads, -1))
        # (B, heads, L, D/heads) each.
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v)
        joined = attended.transpose(1, 2).flatten(2)
        return self.out(joined)


class Block(nn.Module):
    """Attention over time, attention over space, and two linear layers.

    Each is behind LayerNorm and added to its input.
    """

    def __init__(self, num_frames: int, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_frames = num_frames
        self.time_norm = nn.LayerNorm(width, _EPS)
        self.time = Attention(width, num_heads)
        self.time_out = nn.Linear(width, width)
        self.space_norm = nn.LayerNorm(width, _EPS)
        self.space = Attention(width, num_heads)
        self.norm = nn.LayerNorm(width, _EPS)
        wide = nn.Linear(width, 4 * width)
        narrow = nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(wide, nn.GELU(), narrow)

    def forward(self, packed: Tensor) -> Tensor:
        """Tokens (B, 1 + T·S, D), the class token first, after the block."""
        first = packed[:, :1]  # (B, 1, D)
        tokens = packed[:, 1:].unflatten(1, (self.num_frames, -1))  # (B, T, S, D)
        batch, frames, places, width = tokens.shape
        # In memory (B, S, T, D), as attention over time has it.
        over_time = self.time_norm(tokens.transpose(1, 2))
        over_time = over_time.reshape(batch * places, frames, width)
        attended = self.time(over_time)
        moved = self.time_out(attended)
        moved = moved.view(batch, places, frames, width)
        tokens = tokens + moved.transpose(1, 2)
        copies = first[:, None].expand(-1, frames, -1, -1)
        over_space = self.space_norm(torch.cat([copies, tokens], 2))
        # The class token and the S places of each frame, (B·T, 1 + S, D).
        over_space = over_space.flatten(0, 1)
        moved = self.space(over_space).unflatten(0, (batch, frames))
        # The class token has a copy in each frame, and becomes their mean.
        first = first + moved[:, :, 0].mean(1, keepdim=True)
        tokens = tokens + moved[:, :, 1:]
        packed = torch.cat([first, tokens.flatten(1, 2)], 1)
        return packed + self.mlp(self.norm(packed))
