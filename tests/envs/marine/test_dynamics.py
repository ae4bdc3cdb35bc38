"""Laws of motion."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchrl_gpu.envs.marine.dynamics import Unicycle, Vessel
from torchrl_gpu.envs.marine.types import DRIFT, HEADING, PLACE, SPEED, THRUST, VELOCITY, WATER, YAW_RATE, Scene

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
    """Random actions."""
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


@pytest.mark.parametrize("model", [Unicycle(LIKE), Vessel(LIKE)], ids=["v2", "v3"])
def test_without_a_current_what_does_not_turn_goes_straight(model: Unicycle | Vessel) -> None:
    scene = water()
    begun = started(model, scene)
    ahead = torch.full((3, N), 7) if isinstance(model, Unicycle) else torch.ones(2, 3, N, dtype=torch.float64)
    ended, _ = after(model, begun, scene, [ahead] * 10)
    way, heading = ended[PLACE] - begun[PLACE], begun[HEADING]
    assert (way[0] * heading.sin() - way[1] * heading.cos()).abs().max() < 1e-12
    assert (way[0] * heading.cos() + way[1] * heading.sin() > 1).all()
    assert torch.allclose(ended[HEADING], heading)


@pytest.mark.parametrize("model", [Unicycle(LIKE), Vessel(LIKE)], ids=["v2", "v3"])
@pytest.mark.parametrize("cores", [[], [(20.0, 25.0, 4.0), (33.0, 12.0, -3.0)]], ids=["still", "currents"])
def test_a_turned_world_moves_as_the_world_turned(model: Unicycle | Vessel, cores: list) -> None:
    turn = 0.7
    cos, sin = math.cos(turn), math.sin(turn)
    scene, turned_scene = water(cores), water([(cos * x - sin * y, sin * x + cos * y, g) for x, y, g in cores])
    begun, actions = started(model, scene), moves(model, 1, 20)
    ended, energy = after(model, begun, scene, actions)
    turned_ended, turned_energy = after(model, turned(begun, turn), turned_scene, actions)
    difference = turned_ended - turned(ended, turn)
    difference[HEADING] = (difference[HEADING] + math.pi).remainder(2 * math.pi) - math.pi
    assert difference.abs().max() < 1e-8
    assert torch.equal(energy, turned_energy)


def turned(motion: Tensor, turn: float) -> Tensor:
    """All vectors and headings of a motion."""
    out, vessel = motion.clone(), len(motion) > 8
    for rows in (PLACE, VELOCITY, DRIFT, *([slice(WATER.start, WATER.start + 2)] if vessel else [])):
        x, y = motion[rows]
        out[rows] = torch.stack((math.cos(turn) * x - math.sin(turn) * y, math.sin(turn) * x + math.cos(turn) * y))
    out[HEADING] = (motion[HEADING] + turn).remainder(2 * math.pi)
    return out


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


def test_what_drifts_goes_with_the_water() -> None:
    model, scene = Vessel(LIKE), water([(25.0, 25.0, 4.0)])
    motion = started(model, scene)
    rest = torch.zeros(2, 3, N, dtype=torch.float64)
    ended, energy = after(model, motion, scene, [rest])
    assert torch.equal(motion[VELOCITY], motion[DRIFT])
    assert (energy == 0).all()
    moved, speed = (ended[PLACE] - motion[PLACE]) / 0.5, motion[DRIFT].norm(dim=0)
    away = speed < 0.4  # ten metres from the core, where the water does not change much in half a second
    assert ((moved - motion[DRIFT]).norm(dim=0)[away] < 0.02).all()
    assert (speed[away] > 0.2).sum() > 10


def test_power_is_only_lost_in_still_water() -> None:
    # With the thrusters off, the kinetic energy of hull and added mass never grows, but for the steps of integration.
    model, scene = Vessel(LIKE), water()
    motion, _ = after(model, started(model, scene), scene, moves(model, 3, 12))
    motion[THRUST] = 0
    rest = torch.zeros(2, 3, N, dtype=torch.float64)
    before = kinetic(motion)
    for _ in range(8):
        motion, _ = model.move(motion, rest, scene)
        assert (kinetic(motion) <= before + 1e-9).all()
        before = kinetic(motion)


def kinetic(motion: Tensor) -> Tensor:
    cos, sin = motion[HEADING].cos(), motion[HEADING].sin()
    x, y, r = motion[WATER]
    u, v = cos * x + sin * y, cos * y - sin * x
    return (380 * u**2 + 400 * v**2 + 1430 * r**2) / 2


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
        late, now = (make(LIKE, lagged).move(motion, action, scene)[0] for lagged in (True, False))
        assert torch.equal(late[PLACE], now[PLACE])
        assert (late[VELOCITY] - now[VELOCITY]).abs().max() > 1e-3
        if make is Vessel:
            assert (late[YAW_RATE] - now[YAW_RATE]).abs().max() > 1e-3
            assert torch.equal(now[YAW_RATE], now[WATER][2])
