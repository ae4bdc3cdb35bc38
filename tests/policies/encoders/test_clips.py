"""The contract of every encoder of clips."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.no_host_reads import NoHostReads
from tests.policies.encoders.scenes import SHAPES, made, random_clips
from tests.tolerances import assert_near
from torchrl_gpu.policies import ClipEncoder
from torchrl_gpu.policies.encoders.clips import VideoEncoder


@pytest.fixture(scope="module", params=SHAPES)
def encoder(request: pytest.FixtureRequest) -> Any:
    return made(ClipEncoder(request.param, num_features=24), SHAPES[request.param])


@pytest.fixture
def clips(encoder: VideoEncoder) -> Tensor:
    return random_clips(3, encoder.clip_shape)


def loss_and_gradients(encoder: VideoEncoder, clips: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    encoder.zero_grad(set_to_none=True)
    with NoHostReads():
        features = encoder(clips)
        loss = (features * torch.linspace(-1, 1, features.numel()).view_as(features)).sum()
        loss.backward()
    gradients = {name: weight.grad for name, weight in encoder.named_parameters() if weight.grad is not None}
    encoder.zero_grad(set_to_none=True)
    return loss.detach(), gradients


def test_clips_of_any_leading_shape_become_features(encoder: VideoEncoder, clips: Tensor) -> None:
    features = encoder(clips)
    assert features.shape == (3, 24)
    assert features.dtype == torch.float32
    assert features.abs().max() <= 1
    assert torch.equal(encoder(clips[None]), features[None])
    assert encoder(clips[0]).shape == (24,)
    assert encoder(clips[:0]).shape == (0, 24)


def test_a_clip_alone_has_the_features_that_it_has_in_a_batch(encoder: VideoEncoder, clips: Tensor) -> None:
    assert_near(encoder(clips[1:2]), encoder(clips)[1:2])


def test_clips_need_not_be_contiguous(encoder: VideoEncoder, clips: Tensor) -> None:
    strided = clips.transpose(1, 2).contiguous().transpose(1, 2)
    assert not strided.is_contiguous()
    assert torch.equal(encoder(strided), encoder(clips))


def test_clips_told_apart_only_by_the_order_of_frames_differ(encoder: VideoEncoder, clips: Tensor) -> None:
    assert (encoder(clips.flip(1)) - encoder(clips)).abs().max() > 1e-2


def test_every_weight_of_clip_encoders_learns(encoder: VideoEncoder, clips: Tensor) -> None:
    _, gradients = loss_and_gradients(encoder, clips)
    assert gradients.keys() == {name for name, _ in encoder.named_parameters()}
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert not [name for name, gradient in gradients.items() if not gradient.any()]


def test_checkpointing_changes_no_bit_and_nothing_reads_the_device(encoder: VideoEncoder, clips: Tensor) -> None:
    loss, gradients = loss_and_gradients(encoder, clips)
    encoder.checkpointing = True
    try:
        with FlopCounterMode(display=False) as again:
            loss_again, gradients_again = loss_and_gradients(encoder, clips)
    finally:
        encoder.checkpointing = False
    with FlopCounterMode(display=False) as once:
        loss_and_gradients(encoder, clips)
    assert again.get_total_flops() > once.get_total_flops()
    assert torch.equal(loss_again, loss)
    assert all(torch.equal(gradients_again[name], gradients[name]) for name in gradients)


def test_autocast_changes_little(encoder: VideoEncoder, clips: Tensor) -> None:
    with torch.no_grad():
        exact = encoder(clips)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = encoder(clips)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.05
    _, exact_gradients = loss_and_gradients(encoder, clips)
    with torch.autocast("cpu", torch.bfloat16):
        _, gradients = loss_and_gradients(encoder, clips)
    for name, gradient in gradients.items():
        assert (gradient - exact_gradients[name]).norm() <= 0.3 * exact_gradients[name].norm(), name


def test_other_clips_are_refused(encoder: VideoEncoder, clips: Tensor) -> None:
    name = type(encoder).__name__
    shape = ", ".join(map(str, encoder.clip_shape))
    for wrong in (clips.float(), clips[:, 1:], clips[..., 1:]):
        with pytest.raises(ValueError) as error:
            encoder(wrong)
        wanted = f"{name}: clip must be a tensor of torch.uint8 (…, {shape}); got Tensor of {wrong.dtype} "
        assert str(error.value) == wanted + str(tuple(wrong.shape))


@pytest.mark.gpu
def test_a_gpu_gives_the_same(encoder: VideoEncoder, clips: Tensor) -> None:
    wanted = encoder(clips)
    try:
        assert (encoder.cuda()(clips.cuda()).cpu() - wanted).abs().max() < 5e-3
        with torch.autocast("cuda", torch.bfloat16):
            assert (encoder(clips.cuda()).cpu() - wanted).abs().max() < 0.1
    finally:
        encoder.cpu()
