"""R3D-18 against torchvision's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.video import R3D_18_Weights, r3d_18

from tests.policies.encoders.scenes import random_clips, scramble
from torchrl_gpu.policies import R3D18

SHAPE = (3, 3, 16, 16)


@pytest.fixture(scope="module")
def torchvisions() -> nn.Module:
    network = r3d_18(weights=None).double()
    scramble(network)
    return network


def pooled(network: nn.Module, clips: Tensor) -> Tensor:
    """What torchvision's network gives before its classes, for pixels normalised as its weights want them."""
    colours = R3D_18_Weights.KINETICS400_V1.transforms()
    mean, std = (torch.tensor(each, dtype=torch.float64)[:, None, None, None] for each in (colours.mean, colours.std))
    x = (clips.double().transpose(1, 2) / 255 - mean) / std
    for stage in (network.stem, network.layer1, network.layer2, network.layer3, network.layer4, network.avgpool):
        x = stage(x)
    return x.flatten(1)


def test_frozen_it_is_torchvisions_in_eval_mode_and_stays_so_in_training(torchvisions: nn.Module) -> None:
    encoder = R3D18(SHAPE, 8, norm="frozen").double().train()
    encoder.load_state_dict(encoder.adapted(torchvisions.state_dict()))
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    clips = random_clips(2, SHAPE)
    with torch.no_grad():
        found, wanted = encoder.pooled(clips), pooled(torchvisions.eval(), clips)
    assert (found - wanted).abs().max() < 1e-6 * wanted.abs().max()  # mean and std are rounded to float32
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_with_groups_no_batchnorm_is_left(torchvisions: nn.Module) -> None:
    encoder = R3D18(SHAPE, 8, norm="group").double()
    kinds = {type(module) for module in encoder.modules()}
    assert nn.GroupNorm in kinds
    assert not [kind for kind in kinds if issubclass(kind, nn.modules.batchnorm._NormBase)]
    encoder.load_state_dict(encoder.adapted(torchvisions.state_dict()))
    assert torch.equal(encoder.stem[0].weight, torchvisions.stem[0].weight)
    assert torch.equal(encoder.layers[3][1].conv2[1].bias, torchvisions.layer4[1].conv2[1].bias)
