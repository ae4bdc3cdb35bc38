"""Observations of robots.

Frames, ranges, order, who is not there, and the distributions and streams of errors.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from torchrl_gpu.envs.marine.sensors import (
    ERROR,
    Sight,
    draw_noise,
    object_mask,
    observation,
    radius_factors,
    see_v2,
    see_v3,
)
from torchrl_gpu.envs.marine.types import CRAFTS, HEADING, MOTION_SIZE, PLACE, THRUST, VELOCITY, YAW_RATE, Scene

DTYPES = [torch.float64, torch.float32]


def scene_of(goals: Tensor, obstacles: Tensor, radius: Tensor | float = 1.0) -> Scene:
    """A world with goals (2, R, N) and obstacles (2, M, N)."""
    none = goals.new_empty(2, 0, 1, goals.shape[2])
    radii = torch.full_like(obstacles[0], radius) if isinstance(radius, float) else radius
    return Scene(goals, none, none[0], obstacles, radii)


def robots(places: list[tuple[float, float]], version: str, dtype: torch.dtype = torch.float64) -> Tensor:
    """Motion (·, R, 1) of robots that lie still and head along x."""
    motion = torch.zeros(MOTION_SIZE[version], len(places), 1, dtype=dtype)
    motion[PLACE] = torch.tensor(places, dtype=dtype).t()[..., None]
    return motion


def points(places: list[tuple[float, float]], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(places, dtype=dtype).t()[..., None]


def ones(motion: Tensor) -> Tensor:
    return torch.ones_like(motion[HEADING])


def test_a_sight_of_v2_by_hand() -> None:
    # Robot 0 at (10, 10) looks north (heading π/2) and moves at 1 m/s; x of its frame is north, y is west.
    # Obstacles: 4 m north (gap 4 − 1 − 0.8 = 2.2), 3 m west (gap 1.2), one beyond 16 m. Robot 1 is 5 m east, and moves
    # west at 2 m/s: it is seen at (0, −5), moving to +y.
    motion = robots([(10, 10), (15, 10)], "v2")
    motion[HEADING, 0], motion[VELOCITY, 0, 0] = math.pi / 2, torch.tensor([0.0, 1.0]).double()
    motion[VELOCITY, 1, 0] = torch.tensor([-2.0, 0.0]).double()
    scene = scene_of(points([(10, 30), (0, 0)]), points([(10, 14), (7, 10), (26.5, 10), (10, 26.5)]))
    sight = see_v2(motion, scene, ones(motion), CRAFTS["v2"])
    own = [20, 0, 1, 0]
    static = [0, 3, 1, 4, 0, 1] + [0] * 9
    dynamic = [0, -5, 0, 2] + [0] * 16
    assert observation(sight)[0, 0].tolist() == pytest.approx(own + static + dynamic, abs=1e-12)
    assert object_mask(sight)[0, 0].tolist() == [1, 1, 0, 0, 0, 1, 0, 0, 0, 0]
    assert sight.clearance[0, 0].item() == pytest.approx(1.2)
    assert not sight.touches.any()


def test_a_sight_of_v3_by_hand() -> None:
    motion = robots([(10, 10), (20, 10)], "v3")
    motion[VELOCITY, 1, 0] = torch.tensor([-1.0, 0.5]).double()
    motion[YAW_RATE, 0], motion[THRUST, 0, 0] = 0.25, torch.tensor([300.0, -100.0]).double()
    scene = scene_of(points([(10, 30), (0, 0)]), points([(10, 16), (10, 35)]))
    sight = see_v3(motion, scene, ones(motion), CRAFTS["v3"], None)
    radius = CRAFTS["v3"].radius
    own = [0, 20, 0, 0, 0.25, 300, -100]
    # The obstacle's gap is 5 − r, the robot's 10 − 2r.
    objects = [0, 6, 0, 0, 1, 10, 0, -1, 0.5, radius] + [0] * 15
    assert observation(sight)[0, 0].tolist() == pytest.approx(own + objects, abs=1e-12)
    assert sight.clearance[0, 0].item() == pytest.approx(min(5 - radius, 10 - 2 * radius))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 3, 5, 6, 10, 17])
def test_the_nearest_five_come_in_order(count: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(count)
    motion = torch.zeros(8, 2, 200, dtype=dtype)
    motion[PLACE, 1] = 1e3
    places = torch.rand(2, count, 200, generator=generator, dtype=dtype) * 30 - 15
    radius = torch.rand(count, 200, generator=generator, dtype=dtype) * 2
    sight = see_v2(motion, scene_of(torch.zeros(2, 2, 200, dtype=dtype), places, radius), ones(motion), CRAFTS["v2"])
    gap = places.norm(dim=0) - radius - 0.8  # (M, N)
    order = torch.where(gap <= 14.2, gap, math.inf).sort(dim=0, stable=True)
    slots = min(count, 5)
    seen = torch.cat((places, radius[None]))[:, order.indices[:slots], torch.arange(200)]  # (3, slots, N)
    there = order.values[:slots].isfinite()
    static = sight.objects[0][0]  # (5, 3, N)
    assert torch.equal(static[:slots].transpose(0, 1), seen * there)
    assert torch.equal(sight.mask[0, :slots], there.to(dtype))
    assert not static[slots:].any()
    nearest = torch.where(there[0], order.values[0], 15.0)
    assert torch.allclose(sight.clearance[0], nearest, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_equals_the_first_of_the_list_comes_first(dtype: torch.dtype) -> None:
    motion = robots([(0, 0)], "v2", dtype)
    places = points([(0, 5), (5, 0), (0, -5), (-5, 0), (3, 4), (4, 3), (0, 4)], dtype)
    sight = see_v2(motion, scene_of(points([(0, 0)], dtype), places), ones(motion), CRAFTS["v2"])
    assert sight.objects[0][0, :, :2, 0].tolist() == [[0, 4], [0, 5], [5, 0], [0, -5], [-5, 0]]


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_ranges_end_where_they_should(version: str) -> None:
    craft = CRAFTS[version]
    limits = craft.sight + 1.0, craft.sight + craft.detection_radius
    for step, seen in ((-1e-3, True), (1e-3, False)):
        motion = robots([(0, 0), (0, limits[1] + step)], version)
        scene = scene_of(points([(0, 0)] * 2), points([(limits[0] + step, 0)]))
        sight = look(version, motion, scene)
        assert sight.mask[0].sum().item() == (2 if seen else 0)
        if not seen:
            assert sight.clearance[0].item() == craft.sight


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_what_touches_is_what_lies_closer_than_both_radii(version: str) -> None:
    craft = CRAFTS[version]
    for step, touches in ((-1e-6, True), (1e-6, False)):
        for other, place in (("obstacle", 1.0 + craft.radius), ("robot", 2 * craft.radius)):
            motion = robots([(0, 0), (0, place + step if other == "robot" else 1e3)], version)
            scene = scene_of(points([(0, 0)] * 2), points([(place + step if other == "obstacle" else 1e3, 0)]))
            assert look(version, motion, scene).touches[0].item() == touches


def look(version: str, motion: Tensor, scene: Scene, active: Tensor | None = None) -> Sight:
    active = ones(motion) if active is None else active
    if version == "v2":
        return see_v2(motion, scene, active, CRAFTS["v2"])
    return see_v3(motion, scene, active, CRAFTS["v3"], None)


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_who_is_not_there_neither_sees_nor_is_seen(version: str) -> None:
    motion = robots([(0, 0), (3, 0), (0, 6)], version)
    scene = scene_of(points([(9, 9)] * 3), points([(8, 0)]))
    active = torch.tensor([1.0, 0.0, 1.0]).double()[:, None]
    sight = look(version, motion, scene, active)
    seen, mask = observation(sight)[0], object_mask(sight)[0]
    assert not seen[1].any()
    assert not mask[1].any()
    # The obstacle and the third robot.
    assert mask[0].sum() == 2
    assert not sight.touches[0]
    # At 3 m, they are within two vessels' radii.
    assert look(version, motion, scene).touches[0] == (version == "v3")


def test_noise_is_added_to_what_is_seen_and_not_to_what_is_hit() -> None:
    craft = CRAFTS["v3"]
    motion = robots([(0, 0), (0, 10)], "v3")
    scene = scene_of(points([(30, 0)] * 2), points([(6, 0)]))
    noise = torch.zeros(5, 2, 3, 1).double()
    noise[4] = 1
    # The obstacle as robot 0 observes it.
    noise[:, 0, 0, 0] = torch.tensor([-3.0, 0.5, 0.1, -0.2, 0.9])
    sight = see_v3(motion, scene, ones(motion), craft, noise)
    assert sight.objects[0][0, 0, :, 0].tolist() == pytest.approx([3, 0.5, 0.1, -0.2, 0.9])
    assert sight.clearance[0, 0].item() == pytest.approx(math.hypot(3, 0.5) - 0.9 - craft.radius)
    assert sight.objects[0][1, 0, :2, 0].tolist() == pytest.approx([0, -10])
    noise[0, 0, 0] = -5.9
    assert not see_v3(motion, scene, ones(motion), craft, noise).touches.any()


def test_observations_are_contiguous() -> None:
    motion = robots([(0, 0), (3, 3)], "v2").expand(-1, -1, 7).contiguous()
    sight = look("v2", motion, scene_of(torch.zeros(2, 2, 7).double(), torch.ones(2, 1, 7).double() * 9))
    assert observation(sight).shape == (7, 2, 39)
    assert observation(sight).is_contiguous()
    assert object_mask(sight).is_contiguous()


# -- errors -----------------------------------------------------------------------------------------------------------

TABLE = radius_factors(torch.float64, torch.device("cpu"))


def many(num_envs: int = 20_000) -> torch.Tensor:
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
    # 30 rows of N.
    errors = many().flatten(0, 2)
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

    key = torch.tensor([[[5]]])
    steps = torch.cat([draw_noise(key, torch.tensor([step]), 4, TABLE).flatten() for step in range(50)])
    assert steps.unique().numel() == steps.numel()
