"""What is laid over a world is true of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.envs.marine.settings import marine, play
from torchrl_gpu.envs.marine.overlays import Choice, _laid_out, draw_actions, draw_range, draw_values
from torchrl_gpu.envs.marine.viewable import ViewableMarine
from torchrl_gpu.envs.marine.viewer import draw, snapshot
from torchrl_gpu.envs.viewable import Decision, Overlaid

SIZE = 320, 240


def world(setting: str = "v2"):  # type: ignore[no-untyped-def]
    env = marine(setting, num_envs=2)
    play(env, 2)
    shown = snapshot(env, 1)
    return shown, shown.place[None], np.ones(len(shown.place), bool)


def red(picture: np.ndarray) -> int:
    """Pixels of the colour of what brakes."""
    return int((np.abs(picture.astype(int) - (208, 52, 44)).max(2) < 12).sum())


def green(picture: np.ndarray) -> int:
    """Pixels of the colour of what goes faster."""
    return int((np.abs(picture.astype(int) - (29, 138, 74)).max(2) < 12).sum())


MAP = np.s_[:, :224]  # seven tenths of the width


def test_a_table_of_actions_by_hand() -> None:
    # v2: 3·i + j, acceleration i and turn j of −, 0, +; positive turns are to the left.
    table, place = _laid_out(np.arange(9.0), 6, "v2")
    assert table.tolist() == [[8, 7, 6], [5, 4, 3], [2, 1, 0]]  # faster above, left first
    assert (place, table[place]) == ((0, 2), 6)
    # v3: 5·i + j, thrusters left and right of the levels 0, −½, −1, ½, 1.
    table, place = _laid_out(np.arange(25.0), 5 * 4 + 2, "v3")
    assert table[0].tolist() == [24, 23, 20, 21, 22]  # the left one full ahead; the right one from ahead to astern
    assert (place, table[place]) == ((0, 4), 22)


@pytest.mark.parametrize(("push", "shown"), [(0, (True, False)), (1, (False, False)), (2, (False, True))])
def test_arrows_are_coloured_by_acceleration(push: int, shown: tuple[bool, bool]) -> None:
    there, trail, active = world()
    choice = Choice(np.full(len(active), 3 * push + 1), active, np.ones(len(active)))
    picture = draw_actions(there, trail, choice, *SIZE)[MAP]
    assert (red(picture) > 20, green(picture) > 20) == shown


def test_an_arrow_bends_to_the_side_of_the_turn() -> None:
    there, trail, active = world()
    active[1:] = False
    before = draw_actions(there, trail, Choice(np.full(len(active), 7), active & False, np.ones(len(active))), *SIZE)
    sides = []
    for turn in (0, 2):  # to the right, to the left
        choice = Choice(np.full(len(active), 6 + turn), active, np.full(len(active), 2.0))
        rows, columns = np.nonzero((draw_actions(there, trail, choice, *SIZE) != before).any(2)[MAP])
        east, north = columns.mean() - 112, 120 - rows.mean()
        x, y = there.place[0] - there.side / 2
        scale = 224 / (there.side + 3)
        off = np.array([east / scale - x, north / scale - y])
        ahead = np.array([np.cos(there.heading[0]), np.sin(there.heading[0])])
        sides.append(ahead[0] * off[1] - ahead[1] * off[0])  # positive to the left
        assert off @ ahead > 0
    assert sides[0] < 0 < sides[1]


def test_thrusters_ahead_and_astern() -> None:
    there, trail, active = world("v3")
    for level, shown in ((-1.0, (True, False)), (0.0, (False, False)), (1.0, (False, True))):
        commands = np.full((len(active), 2), level)
        picture = draw_actions(there, trail, Choice(commands, active, np.zeros(len(active))), *SIZE)[MAP]
        assert (red(picture) > 20, green(picture) > 20) == shown


def test_who_takes_no_part_has_nothing_laid_over() -> None:
    there, trail, active = world()
    nobody = Choice(np.zeros(len(active), int), active & False, np.ones(len(active)))
    plain = draw(there, trail, width=224, height=224)
    for picture in (
        draw_actions(there, trail, nobody, *SIZE),
        draw_range(there, trail, active & False, np.ones(len(active)), *SIZE),
        draw_values(there, trail, nobody, np.zeros((len(active), 9)), *SIZE),
    ):
        assert np.array_equal(picture[8:232, :224], plain)


def test_the_ring_of_clearance_touches_what_is_nearest() -> None:
    there, trail, active = world()
    active[1:] = False
    far = draw_range(there, trail, active, np.full(len(active), 15.0), *SIZE)[MAP]
    near = draw_range(there, trail, active, np.full(len(active), 5.0), *SIZE)[MAP]
    assert red(far) == 0, "nothing is detected"
    rows, columns = np.nonzero((near != far).any(2))
    scale = 224 / (there.side + 3)
    (x, y), size = (there.place[0] - there.side / 2) * (1, -1) * scale + (112, 120), (5.0 + 0.8) * scale
    assert np.abs(np.hypot(columns - x, rows - y) - size).max() < 3


@pytest.mark.parametrize("setting", ["v2", "v2, one robot", "v2, most", "v3", "v3, discrete", "v3, one robot"])
@pytest.mark.parametrize("size", [(16, 16), SIZE, (200, 300)])
def test_every_overlay_of_every_kind(setting: str, size: tuple[int, int]) -> None:
    env = marine(setting, num_envs=2)
    play(env, 3)
    view, before = ViewableMarine(env), env.state_dict()
    assert isinstance(view, Overlaid)
    assert ("q" in view.overlays) == bool(env.num_actions)
    action = env.full_action_spec[env.action_key].rand()
    values = torch.zeros(env.num_robots, env.num_actions) if env.num_actions else None
    for name in view.overlays:
        picture = view.overlay(name, 1, *size, Decision(action[0], values))
        assert (picture.shape, picture.dtype) == ((size[1], size[0], 3), np.uint8)
    assert all(torch.equal(value, env.state_dict()[key]) for key, value in before.items())


def test_trails_of_worlds_that_nobody_asks_for_any_more_are_forgotten() -> None:
    env = marine("v2, no obstacles", num_envs=80)
    env.reset()
    view = ViewableMarine(env)
    for i in range(80):
        view.pictures([i], 16, 16)
    assert list(view._trails) == list(range(16, 80))
