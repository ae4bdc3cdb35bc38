"""TimeSformer against its definition: one clip, block, frame, place and head at a time, in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.policies.encoders.scenes import random_clips, scramble
from torchrl_gpu.policies import TimeSformer
from torchrl_gpu.policies.encoders.timesformer import SIZES

Array = np.ndarray
Weights = dict[str, Array]
_erf = np.vectorize(math.erf)


def normed(x: Array, w: Weights, name: str, eps: float = 1e-6) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def mapped(x: Array, w: Weights, name: str) -> Array:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def attended(tokens: Array, w: Weights, name: str, num_heads: int) -> Array:
    """What each token (L, D) gets from all of them."""
    width = tokens.shape[1] // num_heads
    q, k, v = np.split(mapped(tokens, w, f"{name}.qkv"), 3, 1)
    out = np.zeros_like(tokens)
    for head in range(num_heads):
        part = slice(head * width, (head + 1) * width)
        for i in range(len(tokens)):
            scores = np.exp(k[:, part] @ q[i, part] / math.sqrt(width))
            out[i, part] = (scores / scores.sum()) @ v[:, part]
    return mapped(out, w, f"{name}.out")


def naive(clip: Array, w: Weights, patch: int, num_heads: int, depth: int) -> Array:
    frames, _, height, width = clip.shape
    rows, columns = height // patch, width // patch
    pixels = (clip / 255 - 0.45) / 0.225
    kernel = w["embedding.weight"]
    tokens = np.zeros((frames, rows * columns, len(kernel)))
    for t in range(frames):
        for r in range(rows):
            for c in range(columns):
                cut = pixels[t, :, r * patch : (r + 1) * patch, c * patch : (c + 1) * patch]
                place = r * columns + c
                embedded = (kernel * cut).sum((1, 2, 3)) + w["embedding.bias"]
                tokens[t, place] = embedded + w["space"][1 + place] + w["time"][t]
    first = w["class_token"] + w["space"][0]
    for n in range(depth):
        block = f"blocks.{n}"
        for place in range(rows * columns):  # equation 8: attention over time
            over_time = attended(normed(tokens[:, place], w, f"{block}.time_norm"), w, f"{block}.time", num_heads)
            tokens[:, place] += mapped(over_time, w, f"{block}.time_out")
        copies = []
        for t in range(frames):  # equation 9: attention over space, the class token among the patches
            seen = normed(np.vstack([first, tokens[t]]), w, f"{block}.space_norm")
            over_space = attended(seen, w, f"{block}.space", num_heads)
            copies.append(over_space[0])
            tokens[t] += over_space[1:]
        first = first + np.mean(copies, 0)

        def mlp(x: Array, block: str = block) -> Array:
            hidden = mapped(normed(x, w, f"{block}.norm"), w, f"{block}.mlp.0")
            return x + mapped(hidden * (1 + _erf(hidden / math.sqrt(2))) / 2, w, f"{block}.mlp.2")

        first, tokens = mlp(first), mlp(tokens)
    out = mapped(normed(first, w, "norm"), w, "projection.linear")
    return np.tanh(normed(out, w, "projection.norm", 1e-5))


@pytest.mark.parametrize(("shape", "patch"), [((3, 3, 8, 12), 4), ((1, 3, 4, 2), 2)])
def test_features_are_those_of_the_definition(shape: tuple[int, int, int, int], patch: int) -> None:
    encoder = TimeSformer(shape, 6, patch=patch).double()
    scramble(encoder)
    clips = random_clips(2, shape)
    weights = {name: value.numpy() for name, value in encoder.state_dict().items()}
    _, depth, num_heads = SIZES["tiny"]
    wanted = [naive(clip.double().numpy(), weights, patch, num_heads, depth) for clip in clips]
    found: Tensor = encoder(clips)
    assert np.abs(found.detach().numpy() - np.stack(wanted)).max() < 1e-10


def test_the_largest_is_the_papers() -> None:
    """121.4 million weights, as the paper has it, at 8 frames of 224×224 with a head of 400 classes."""
    with torch.device("meta"):
        encoder = TimeSformer((8, 3, 224, 224), 400, size="base", patch=16)
    without_head = [weight.numel() for name, weight in encoder.named_parameters() if "projection" not in name]
    assert sum(without_head) + 768 * 400 + 400 == pytest.approx(121.4e6, rel=2e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patch": 6}, r"sides of frames \(16, 8\) must be multiples of the patch; got 6"),
        ({"patch": 16}, "patch must be at most 8; got 16"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"TimeSformer: {message}"):
        TimeSformer((4, 3, 16, 8), **settings)
