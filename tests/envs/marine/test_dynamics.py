"""Laws of motion, and of the water."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchrl_gpu.envs.marine.dynamics import Unicycle, Vessel, flow
from torchrl_gpu.envs.marine.types import HEADING, PLACE, SPEED, THRUST, VELOCITY, WATER, YAW_RATE, Scene

LIKE = torch.empty(0, dtype=torch.float64)
N = 40


def water(cores: list[tuple[float, float, float]] | None = None) -> Scene:
    """The same cores (x, y, circulation) in every world."""
    rows = torch.tensor(cores or [], dtype=torch.float64).view(-1, 3)
    core = rows[:, :2].t()[:, :, None, None].expand(2, len(rows), 1, N)
    none = torch.empty(2, 0, N, dtype=torch.float64)
    return Scene(none, core, rows[:, 2][:, None, None].expand(-1, 1, N), none, none[0])


def started(model: Unicycle | Vessel, scene: Scene, seed: int = 0, still: bool = False) -> Tensor:
    """Robots (·, 3, N) all over the map."""
    generator = torch.Generator().manual_seed(seed)
    x, y, heading, speed = torch.rand(4, 3, N, dtype=torch.float64, generator=generator)
    return model.start(torch.stack((x, y)) * 50, heading * 2 * math.pi, speed * 2, scene, still)


def moves(model: Unicycle | Vessel, seed: int, steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, Unicycle):
        return list(torch.randint(9, (steps, 3, N), generator=generator))
    return list(torch.rand(steps, 2, 3, N, dtype=torch.float64, generator=generator) * 2 - 1)


def after(model: Unicycle | Vessel, motion: Tensor, scene: Scene, actions: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Motion, and the energy that all actions took."""
    energy = torch.zeros(3, N, dtype=torch.float64)
    for action in actions:
        motion, more = model.move(motion, action, scene)
        assert (more >= 0).all()
        energy = energy + more
    return motion, energy


def test_speeds_headings_and_thrusts_keep_their_bounds() -> None:
    for model in (Unicycle(LIKE), Vessel(LIKE)):
        scene = water([(20.0, 25.0, 4.0)])
        motion = started(model, scene)
        for action in moves(model, 2, 60):
            motion, _ = model.move(motion, action, scene)
            assert ((motion[HEADING] >= 0) & (motion[HEADING] < 2 * math.pi)).all()
            if isinstance(model, Unicycle):
                assert ((motion[SPEED] >= 0) & (motion[SPEED] <= 2)).all()
            else:
                assert ((motion[THRUST] >= -500) & (motion[THRUST] <= 1000)).all()


@pytest.mark.parametrize("action", [-1, 9, 10**12, -(10**12)])
def test_an_action_that_does_not_exist_does_nothing(action: int) -> None:
    model, scene = Unicycle(LIKE), water([(20.0, 25.0, 4.0)])
    motion = started(model, scene)
    idle = model.move(motion, torch.full((3, N), 4), scene)
    for got, wanted in zip(model.move(motion, torch.full((3, N), action), scene), idle, strict=True):
        assert torch.equal(got, wanted)
    assert (idle[1] == 0).all()


def test_discrete_commands_of_a_vessel_are_those_of_the_thrusters() -> None:
    model, scene = Vessel(LIKE), water()
    motion, levels = started(model, scene), (0.0, -0.5, -1.0, 0.5, 1.0)
    for action in range(25):
        command = torch.tensor([levels[action // 5], levels[action % 5]]).double()[:, None, None].expand(2, 3, N)
        discrete = model.move(motion, torch.full((3, N), action), scene)
        for got, wanted in zip(discrete, model.move(motion, command, scene), strict=True):
            assert torch.equal(got, wanted)


def test_a_command_that_is_no_number_or_too_large_is_mended() -> None:
    model, scene = Vessel(LIKE), water()
    motion = started(model, scene)
    wild = torch.tensor([math.nan, 7.0]).double()[:, None, None].expand(2, 3, N)
    tame = torch.tensor([0.0, 1.0]).double()[:, None, None].expand(2, 3, N)
    assert torch.equal(model.move(motion, wild, scene)[0], model.move(motion, tame, scene)[0])


def test_a_lagged_velocity_is_that_before_the_last_substep() -> None:
    scene = water([(20.0, 25.0, 4.0)])
    for make in (Unicycle, Vessel):
        action = moves(make(LIKE), 4, 1)[0]
        motion = started(make(LIKE), scene)
        late = make(LIKE, True).move(motion, action, scene)[0]
        now = make(LIKE, False).move(motion, action, scene)[0]
        assert torch.equal(late[PLACE], now[PLACE])
        assert (late[VELOCITY] - now[VELOCITY]).abs().max() > 1e-3
        if make is Vessel:
            assert (late[YAW_RATE] - now[YAW_RATE]).abs().max() > 1e-3
            assert torch.equal(now[YAW_RATE], now[WATER][2])


# -- water ------------------------------------------------------------------------------------------------------------


def at(x: Tensor, y: Tensor, cores: list[tuple[float, float, float]]) -> Tensor:
    """Flow (2, K) of cores (x, y, circulation) at places (K,)."""
    rows = torch.tensor(cores, dtype=torch.float64).view(-1, 3)
    core, circulation = rows[:, :2].t()[:, :, None, None], rows[:, 2][:, None, None]
    return torch.stack(flow(x[:, None], y[:, None], core, circulation)).squeeze(-1)


def places(count: int = 200, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.rand(2, count, dtype=torch.float64, generator=generator) * 20
    return x, y


def test_a_current_by_hand() -> None:
    # γ = r₀ · edge speed = 0.5 · 6. Two metres east: 3 / 2 m/s southwards; a quarter of a metre west: 3 · 0.25 / 0.25.
    x, y = torch.tensor([12.0, 9.75, 10.0]).double(), torch.tensor([10.0, 10.0, 10.0]).double()
    assert at(x, y, [(10, 10, 3)])[1].tolist() == pytest.approx([-1.5, 3, 0])
    assert at(x, y, [(10, 10, 3)])[0].abs().max() < 1e-12


def test_flows_add_up_and_a_core_of_no_strength_adds_nothing() -> None:
    x, y = places()
    cores = [(6.0, 6.0, 3.0), (14.0, 9.0, -5.0)]
    assert torch.allclose(at(x, y, cores), sum(at(x, y, [core]) for core in cores))
    assert torch.equal(at(x, y, [*cores, (1e5, 1e5, 0.0)]), at(x, y, cores))
    assert torch.equal(at(x, y, []), torch.zeros(2, len(x), dtype=torch.float64))
