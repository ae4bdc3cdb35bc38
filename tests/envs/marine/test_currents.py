"""Laws of the water."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchrl_gpu.envs.marine.currents import flow

H = 1e-4  # metres, of differences


def at(x: Tensor, y: Tensor, cores: list[tuple[float, float, float]]) -> Tensor:
    """Flow (2, K) of cores (x, y, circulation) at places (K,)."""
    rows = torch.tensor(cores, dtype=torch.float64).view(-1, 3)
    core, circulation = rows[:, :2].t()[:, :, None, None], rows[:, 2][:, None, None]
    return torch.stack(flow(x[:, None], y[:, None], core, circulation)).squeeze(-1)


def places(count: int = 200, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.rand(2, count, dtype=torch.float64, generator=generator) * 20
    return x, y


def test_by_hand() -> None:
    # γ = r₀ · edge speed = 0.5 · 6. Two metres east: 3 / 2 m/s southwards; a quarter of a metre west: 3 · 0.25 / 0.25.
    x, y = torch.tensor([12.0, 9.75, 10.0]).double(), torch.tensor([10.0, 10.0, 10.0]).double()
    assert at(x, y, [(10, 10, 3)])[1].tolist() == pytest.approx([-1.5, 3, 0])
    assert at(x, y, [(10, 10, 3)])[0].abs().max() < 1e-12


def test_the_flow_of_one_core_is_tangential_and_falls_off_as_one_over_r() -> None:
    x, y = places()
    vx, vy = at(x, y, [(10, 10, -4)])
    dx, dy = x - 10, y - 10
    distance = torch.hypot(dx, dy)
    assert (vx * dx + vy * dy).abs().max() < 1e-12
    expected = 4 / distance * torch.where(distance > 0.5, 1.0, (distance / 0.5) ** 2)
    assert torch.allclose(torch.hypot(vx, vy), expected, rtol=1e-12)
    assert (dx * vy - dy * vx > 0).all()  # counterclockwise


def test_it_is_free_of_sources_everywhere_and_of_rotation_outside_the_cores() -> None:
    cores = [(6.0, 6.0, 3.0), (14.0, 9.0, -5.0), (9.0, 15.0, 2.5)]
    x, y = places(400)
    dx = (at(x + H, y, cores) - at(x - H, y, cores)) / (2 * H)
    dy = (at(x, y + H, cores) - at(x, y - H, cores)) / (2 * H)
    away = torch.stack([torch.hypot(x - cx, y - cy) - 0.5 for cx, cy, _ in cores]).abs().amin(0) > 2 * H  # of an edge
    outside = torch.stack([torch.hypot(x - cx, y - cy) > 0.6 for cx, cy, _ in cores]).all(0)
    assert (dx[0] + dy[1])[away].abs().max() < 1e-6
    assert (dx[1] - dy[0])[outside].abs().max() < 1e-6
    assert outside.sum() > 300


def test_circulation_around_a_core_is_its_own() -> None:
    angle = torch.linspace(0, 2 * math.pi, 2001, dtype=torch.float64)[:-1]
    x, y = 10 + 3 * angle.cos(), 10 + 3 * angle.sin()
    vx, vy = at(x, y, [(10, 10, -4), (16, 10, 7)])  # the other one lies outside the circle
    along = (vy * angle.cos() - vx * angle.sin()).mean() * 2 * math.pi * 3
    assert along.item() == pytest.approx(4 * 2 * math.pi)


def test_flows_add_up_and_a_core_of_no_strength_adds_nothing() -> None:
    x, y = places()
    cores = [(6.0, 6.0, 3.0), (14.0, 9.0, -5.0)]
    assert torch.allclose(at(x, y, cores), sum(at(x, y, [core]) for core in cores))
    assert torch.equal(at(x, y, [*cores, (1e5, 1e5, 0.0)]), at(x, y, cores))
    assert torch.equal(at(x, y, []), torch.zeros(2, len(x), dtype=torch.float64))
