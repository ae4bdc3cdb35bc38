"""The small encoders against torch's own convolutions, a frame or a window of frames at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv3d, layer_norm

from tests.policies.encoders.scenes import random_clips, scramble
from tests.tolerances import assert_near
from torchrl_gpu.policies import Simple2DCNN, Simple3DCNN
from torchrl_gpu.policies.encoders import simple
from torchrl_gpu.policies.encoders.clips import ClipShape

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
