"""Errors of sensors: their distributions, and the streams that they come from."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from torchrl_gpu.envs.marine.noise import ERROR, draw_noise, radius_factors

CPU = torch.device("cpu")
TABLE = radius_factors(torch.float64, CPU)


def many(num_envs: int = 20_000) -> torch.Tensor:
    """(5, 2, 3, N)."""
    key = torch.arange(num_envs).expand(2, 1, -1) + 10**9 * torch.arange(2)[:, None, None]
    return draw_noise(key, torch.zeros(num_envs, dtype=torch.int64), 3, TABLE)


def test_places_and_velocities_have_normal_errors() -> None:
    errors = many()[:4] / ERROR
    assert ERROR == 0.05
    count = errors[0].numel()
    mean, variance = errors.mean((1, 2, 3)), errors.var((1, 2, 3))
    assert (mean.abs() < 5 / math.sqrt(count)).all()
    assert ((variance - 1).abs() < 5 * math.sqrt(2 / count)).all()
    for limit, share in ((1.0, 0.6827), (2.0, 0.9545)):
        within = (errors.abs() < limit).double().mean((1, 2, 3))
        assert ((within - share).abs() < 5 * math.sqrt(share * (1 - share) / count)).all()
    assert errors.abs().max() < 5


def test_errors_are_not_correlated() -> None:
    errors = many().flatten(0, 2)  # 30 rows of N
    correlation = torch.corrcoef(errors) - torch.eye(len(errors))
    assert correlation.abs().max() < 5.5 / math.sqrt(errors.shape[1])


def test_radii_are_multiplied_by_a_von_mises_number() -> None:
    angle = (many()[4].flatten() - 0.8) / 0.2 * math.pi
    assert angle.abs().max() <= math.pi + 1e-9
    # Mean resultant length I₁(1)/I₀(1) = 0.44640, second moment I₂(1)/I₀(1) = 0.10722 (Mardia and Jupp, 2000).
    count = len(angle)
    assert angle.cos().mean().item() == pytest.approx(0.44640, abs=5 / math.sqrt(2 * count))
    assert (2 * angle).cos().mean().item() == pytest.approx(0.10722, abs=5 / math.sqrt(2 * count))
    assert angle.sin().mean().item() == pytest.approx(0, abs=5 / math.sqrt(2 * count))


def test_the_table_of_quantiles_is_that_of_the_density() -> None:
    angle = (TABLE.numpy() - 0.8) / 0.2 * math.pi
    assert angle[[0, 128, 256]] == pytest.approx([-math.pi, 0, math.pi], abs=1e-6)
    fine = np.linspace(-math.pi, math.pi, 20_001)
    density = np.exp(np.cos(fine)) / (2 * math.pi * np.i0(1.0))
    below = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(fine))])
    assert np.interp(angle, fine, below) == pytest.approx(np.linspace(0, 1, 257), abs=1e-6)


def test_a_stream_gives_the_same_whatever_is_drawn_beside_it() -> None:
    key, step = torch.tensor([[[5, 6, 7]], [[8, 9, 10]]]), torch.tensor([3, 4, 5])
    together = draw_noise(key, step, 4, TABLE)
    assert torch.equal(draw_noise(key[:1, :, 1:2], step[1:2], 4, TABLE)[..., 0], together[:, :1, :, 1])
    assert not torch.equal(draw_noise(key, step + 1, 4, TABLE), together)
    assert draw_noise(key, step, 4, TABLE.float()).dtype == torch.float32


def test_steps_do_not_share_numbers() -> None:
    key = torch.tensor([[[5]]])
    steps = torch.cat([draw_noise(key, torch.tensor([step]), 4, TABLE).flatten() for step in range(50)])
    assert steps.unique().numel() == steps.numel()
