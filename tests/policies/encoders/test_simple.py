"""The small encoders against torch's own convolutions.

Of a frame or a window of frames at a time.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv3d, layer_norm
from torchvision.models.video import R3D_18_Weights

from tests.policies.encoders.scenes import random_clips, scramble, torchvisions
from tests.tolerances import assert_near
from torchrl_gpu.policies import R3D18, Simple2DCNN, Simple3DCNN, TimeSformer
from torchrl_gpu.policies.encoders import simple
from torchrl_gpu.policies.encoders.clips import ClipShape
from torchrl_gpu.policies.encoders.timesformer import SIZES

Weights = dict[str, Tensor]


def projected(features: Tensor, w: Weights) -> Tensor:
    out = w["projection.linear.weight"] @ features + w["projection.linear.bias"]
    return layer_norm(out, out.shape, w["projection.norm.weight"], w["projection.norm.bias"]).tanh()


def naive_2d(clip: Tensor, w: Weights) -> Tensor:
    pixels, features = clip.double() / 255 - 0.5, []
    for before, frame in itertools.pairwise(pixels):
        x = torch.cat([frame, frame - before])[None]
        x = conv2d(x, w["stem.weight"], w["stem.bias"], stride=4).relu()
        for name in ("second", "third"):
            x = conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], stride=2).relu()
        features.append(x[0].permute(1, 2, 0).flatten())
    return projected(torch.cat(features), w)


def naive_3d(clip: Tensor, w: Weights) -> Tensor:
    x = (clip.double() / 255 - 0.5).transpose(0, 1)[None]
    x = conv3d(x, w["stem.weight"], w["stem.bias"], stride=(1, 4, 4)).relu()
    for name in ("second", "third"):
        x = conv3d(x, w[f"{name}.weight"], w[f"{name}.bias"], stride=(1, 2, 2)).relu()
    return projected(x[0].mean(1).permute(1, 2, 0).flatten(), w)


@pytest.mark.parametrize(("made", "naive"), [(Simple2DCNN, naive_2d), (Simple3DCNN, naive_3d)])
@pytest.mark.parametrize("shape", [(4, 3, 32, 32), (6, 3, 16, 48), (5, 3, 48, 32)])
def test_features_are_those_of_the_definition(
    made: type[Simple2DCNN | Simple3DCNN], naive: Callable[[Tensor, Weights], Tensor], shape: ClipShape
) -> None:
    encoder = made(shape, 10).double()
    scramble(encoder)
    clips = random_clips(3, shape)
    wanted = torch.stack([naive(clip, encoder.state_dict()) for clip in clips])
    assert_near(encoder(clips), wanted)


@pytest.mark.parametrize("made", [Simple2DCNN, Simple3DCNN])
def test_a_batch_in_blocks_is_a_batch_at_once(
    made: type[Simple2DCNN | Simple3DCNN], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (4, 3, 16, 16)
    encoder, clips = made(shape), random_clips(5, shape)
    at_once = encoder(clips)
    parts: list[int] = []
    encode = encoder._encode
    monkeypatch.setattr(encoder, "_encode", lambda part: parts.append(len(part)) or encode(part))
    monkeypatch.setattr(simple, "_PIXELS_AT_ONCE", 2 * clips[0].numel())
    assert_near(encoder(clips), at_once)
    assert parts == [2, 2, 1]


@pytest.mark.parametrize(
    ("made", "shape", "message"),
    [
        (Simple2DCNN, (1, 3, 64, 64), r"must be \(T, 3, H, W\), at least \(2, 3, 16, 16\); got \(1, 3, 64, 64\)"),
        (Simple3DCNN, (3, 3, 64, 64), r"must be \(T, 3, H, W\), at least \(4, 3, 16, 16\); got \(3, 3, 64, 64\)"),
        (Simple2DCNN, (4, 1, 64, 64), r"must be \(T, 3, H, W\)"),
        (Simple2DCNN, (4, 3, 64), r"must be \(T, 3, H, W\)"),
        (Simple2DCNN, "clip", r"must be \(T, 3, H, W\)"),
        (Simple2DCNN, (4, 3, 64, 60), "Simple2DCNN: width of the clip must be a multiple of 16; got 60"),
        (Simple3DCNN, (4, 3, 30, 64), "Simple3DCNN: height of the clip must be a multiple of 16; got 30"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(made: type, shape: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(shape)


SHAPE = (3, 3, 16, 16)


def pooled(network: nn.Module, clips: Tensor) -> Tensor:
    """Return features of torchvision's network before its classes.

    Pixels are normalised as its weights need them.
    """
    colours = R3D_18_Weights.KINETICS400_V1.transforms()
    mean = torch.tensor(colours.mean, dtype=torch.float64)[:, None, None, None]
    std = torch.tensor(colours.std, dtype=torch.float64)[:, None, None, None]
    x = (clips.double().transpose(1, 2) / 255 - mean) / std
    for stage in (network.stem, network.layer1, network.layer2, network.layer3, network.layer4, network.avgpool):
        x = stage(x)
    return x.flatten(1)


def test_frozen_it_is_torchvisions_in_eval_mode_and_stays_so_in_training() -> None:
    encoder, theirs = R3D18(SHAPE, 8, norm="frozen").double().train(), copy.deepcopy(torchvisions()).double()
    encoder.load_state_dict(encoder.adapted(theirs.state_dict()))
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    clips = random_clips(2, SHAPE)
    with torch.no_grad():
        found, wanted = encoder.pooled(clips), pooled(theirs.eval(), clips)
    # Mean and deviation are rounded to float32.
    assert (found - wanted).abs().max() < 1e-6 * wanted.abs().max()
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_with_groups_no_batchnorm_is_left() -> None:
    encoder, theirs = R3D18(SHAPE, 8, norm="group"), torchvisions()
    kinds = {type(module) for module in encoder.modules()}
    assert nn.GroupNorm in kinds
    assert not [kind for kind in kinds if "BatchNorm" in kind.__name__]
    encoder.load_state_dict(encoder.adapted(theirs.state_dict()))
    assert torch.equal(encoder.stem[0].weight, theirs.stem[0].weight)
    assert torch.equal(encoder.layers[3][1].conv2[1].bias, theirs.layer4[1].conv2[1].bias)


Array = np.ndarray
Arrays = dict[str, Array]
_erf = np.vectorize(math.erf)


def normed(x: Array, w: Arrays, name: str, eps: float = 1e-6) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def mapped(x: Array, w: Arrays, name: str) -> Array:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def attended(tokens: Array, w: Arrays, name: str, num_heads: int) -> Array:
    """Attention of each token (L, D) to all of them."""
    width = tokens.shape[1] // num_heads
    q, k, v = np.split(mapped(tokens, w, f"{name}.qkv"), 3, 1)
    out = np.zeros_like(tokens)
    for head in range(num_heads):
        part = slice(head * width, (head + 1) * width)
        for i in range(len(tokens)):
            scores = np.exp(k[:, part] @ q[i, part] / math.sqrt(width))
            out[i, part] = (scores / scores.sum()) @ v[:, part]
    return mapped(out, w, f"{name}.out")


def naive_timesformer(clip: Array, w: Arrays, patch: int, num_heads: int, depth: int) -> Array:
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
        # Equation 8: attention over time.
        for place in range(rows * columns):
            over_time = attended(normed(tokens[:, place], w, f"{block}.time_norm"), w, f"{block}.time", num_heads)
            tokens[:, place] += mapped(over_time, w, f"{block}.time_out")
        copies = []
        # Equation 9: attention over space, the class token among the patches.
        for t in range(frames):
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
def test_timesformer_is_that_of_the_definition(shape: tuple[int, int, int, int], patch: int) -> None:
    encoder = TimeSformer(shape, 6, patch=patch).double()
    scramble(encoder)
    clips = random_clips(2, shape)
    weights = {name: value.numpy() for name, value in encoder.state_dict().items()}
    _, depth, num_heads = SIZES["tiny"]
    wanted = [naive_timesformer(clip.double().numpy(), weights, patch, num_heads, depth) for clip in clips]
    found: Tensor = encoder(clips)
    assert np.abs(found.detach().numpy() - np.stack(wanted)).max() < 1e-10


def test_the_largest_is_the_papers() -> None:
    """The largest network has the size of the paper's.

    121.4 million weights at 8 frames of 224×224 with a head of 400 classes.
    """
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
def test_patches_that_do_not_fit_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"TimeSformer: {message}"):
        TimeSformer((4, 3, 16, 8), **settings)
