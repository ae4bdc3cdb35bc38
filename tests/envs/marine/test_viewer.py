"""Pictures show what is there, where it is."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tensordict import TensorDictBase

from tests.envs.marine.settings import acted, homing_action, marine, play
from torchrl_gpu.envs.marine.overlays import Choice, draw_actions, draw_range, draw_values, lay_out
from torchrl_gpu.envs.marine.types import HEADING, PLACE
from torchrl_gpu.envs.marine.viewable import ViewableMarine
from torchrl_gpu.envs.marine.viewer import Chart, Snapshot, draw, film, render, save_gif, snapshot
from torchrl_gpu.envs.viewable import Decision, Overlaid, Spatial, Viewable, viewable


def empty(version: str = "v2", **changes: np.ndarray) -> Snapshot:
    """A still sea with one robot in the middle.

    It heads along x, and its goal is to the left.
    """
    nothing = np.zeros((0, 3))
    no = np.zeros(1, bool)
    arrays = {
        "place": np.array([[25.0, 25.0]]),
        "heading": np.zeros(1),
        "goal": np.array([[10.0, 25.0]]),
        "exists": ~no,
        "arrived": no,
        "collided": no,
        "core": nothing,
        "obstacle": nothing,
    }
    return Snapshot(version, 50.0, **arrays | changes)


def picture(version: str = "v2", **changes: np.ndarray) -> np.ndarray:
    """530 pixels for 53 m: ten a metre, the map's corner 15 pixels inside."""
    return draw(empty(version, **changes), width=530, height=530)


def changed(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(K, 2): rows and columns of the pixels that differ."""
    return np.argwhere((first.astype(int) - second).any(-1))


def test_a_snapshot_is_the_state_of_one_world() -> None:
    env = marine("v2", num_envs=3, robots=4, cores=2, obstacles=3)
    env.reset()
    world = snapshot(env, 2)
    assert world.place == pytest.approx(env.state.motion[PLACE, :, 2].t().numpy())
    assert world.heading == pytest.approx(env.state.motion[HEADING, :, 2].numpy())
    assert (world.core.shape, world.obstacle.shape) == ((2, 3), (3, 3))
    assert snapshot(marine("v2, no obstacles"), 0).obstacle.shape == (0, 3)


def test_an_obstacle_is_where_it_is() -> None:
    obstacle = {"obstacle": np.array([[40.0, 10.0, 2.0]])}
    # North is up: y in v2, x in v3.
    for version, expected in (("v2", (415, 415)), ("v3", (115, 115))):
        seen = changed(picture(version), picture(version, **obstacle))
        assert (seen.min(0) + seen.max(0)) / 2 == pytest.approx(expected, abs=1)
        # The filter rings a little.
        assert (seen.max(0) - seen.min(0)) / 2 == pytest.approx([20, 20], abs=4)


@pytest.mark.parametrize(("version", "turn"), [("v2", 0.0), ("v2", 1.0), ("v3", 0.0), ("v3", 2.0)])
def test_a_bow_points_ahead(version: str, turn: float) -> None:
    robot = picture(version, heading=np.array([turn])).astype(int) - picture(version, exists=np.zeros(1, bool))
    # Without the goal.
    rows, columns = np.nonzero((np.abs(robot) > 60).any(-1)[200:330, 200:330])
    middle, ahead = Chart(version, 50.0, 530, 530).pixels(
        np.array([[25.0, 25.0], [25.0 + math.cos(turn), 25.0 + math.sin(turn)]])
    )
    x, y = columns + 200 - middle[0], rows + 200 - middle[1]
    cos, sin = (np.array(ahead) - middle) / 10
    along, across = cos * x + sin * y, np.abs(cos * y - sin * x)
    front, back = across[along > np.quantile(along, 0.9)], across[along < np.quantile(along, 0.1)]
    # It is narrow in front.
    assert front.mean() < 0.6 * back.mean()


def test_who_arrives_fills_the_goal_and_who_collides_is_crossed_out() -> None:
    plain = draw(empty())
    arrived = draw(empty(arrived=np.ones(1, bool)))
    collided = draw(empty(collided=np.ones(1, bool)))
    assert len(changed(plain, arrived)) > 500
    red = (collided[..., 0] > 180) & (collided[..., 1] < 80) & (collided[..., 2] < 80)
    assert red.sum() > 20
    assert not ((plain[..., 0] > 180) & (plain[..., 1] < 80) & (plain[..., 2] < 80)).any()
    absent = draw(empty(exists=np.zeros(1, bool)))
    assert len(changed(plain, absent)) > 100
    assert len(changed(absent, draw(empty(exists=np.zeros(1, bool), collided=np.ones(1, bool))))) == 0


def test_a_trail_is_drawn_along_the_way() -> None:
    trail = np.array([[[5.0, 40.0]], [[45.0, 40.0]], [[25.0, 25.0]]])
    seen = changed(draw(empty()), draw(empty(), trail))
    assert len(seen) > 300
    assert seen[:, 0].min() == pytest.approx((1.5 + 10) / 53 * 640, abs=8)


def test_currents_colour_the_sea() -> None:
    core = picture(core=np.array([[35.0, 35.0, 4.0]]))
    near, far = core[530 - 15 - 350 - 12, 15 + 350].astype(int), core[500, 30].astype(int)
    assert far.sum() > near.sum() + 60


def test_render_draws_one_world_or_several() -> None:
    env = marine("v3", num_envs=3)
    env.reset()
    one, two = render(env, 1, width=120, height=100), render(env, [1, 2], width=120, height=100)
    assert one.shape == (100, 120, 3)
    assert one.dtype == torch.uint8
    assert torch.equal(two[0], one)
    assert not torch.equal(two[0], two[1])


def test_a_film_of_an_episode_can_be_saved(tmp_path: Path) -> None:
    env = marine("v2", num_envs=2, max_steps=6)

    def policy(seen: TensorDictBase) -> TensorDictBase:
        return acted(env, seen, homing_action(env, seen))

    frames = film(env, policy, index=1, width=100, height=100)
    assert frames.shape == (7, 100, 100, 3)
    assert not torch.equal(frames[0], frames[-1])
    path = save_gif(frames, tmp_path / "film.gif")
    with Image.open(path) as image:
        assert image.n_frames == 7
    assert len(film(env, policy, steps=2, width=50, height=50)) == 3


@pytest.mark.parametrize("setting", ["v2", "v3, curriculum"])
def test_figures_are_those_of_the_running_episode(setting: str) -> None:
    env = marine(setting, num_envs=4)
    shown = viewable(env)
    assert isinstance(shown, Viewable)
    assert shown.num_envs == 4
    seen, _ = play(env, 7)
    metrics = shown.metrics()
    assert {value.shape for value in metrics.values()} == {(4,)}
    assert metrics["step"].tolist() == [7] * 4
    assert metrics["episode"].tolist() == [1] * 4
    robots = seen[0]["robots", "active"].sum(1)[:, 0]
    expected = sum(step["next", "robots", "reward"].sum((1, 2)) for step in seen) / robots
    assert torch.allclose(metrics["return"], expected, atol=1e-4)
    assert torch.equal(metrics["active"] + metrics["arrived"] + metrics["collided"], robots)


def test_pictures_change_nothing_and_join_the_places_seen() -> None:
    env, twin = marine("v2", num_envs=3, max_steps=20), marine("v2", num_envs=3, max_steps=20)
    shown = ViewableMarine(env)
    current = env.reset()
    first = shown.pictures([0, 2], 120, 90)
    assert first.shape == (2, 90, 120, 3)
    assert first.dtype == np.uint8
    for _ in range(10):
        current = env.step_and_maybe_reset(acted(env, current, homing_action(env, current)))[1]
    later, fresh = shown.pictures([0], 120, 90), ViewableMarine(env).pictures([0], 120, 90)
    # The trail.
    assert (later != fresh).any()
    # Into the next episode, which has no trail yet.
    for _ in range(10):
        current = env.step_and_maybe_reset(acted(env, current, homing_action(env, current)))[1]
    assert np.array_equal(shown.pictures([0], 120, 90), ViewableMarine(env).pictures([0], 120, 90))
    again = twin.reset()
    for _ in range(20):
        again = twin.step_and_maybe_reset(acted(twin, again, homing_action(twin, again)))[1]
    assert all(torch.equal(value, twin.state_dict()[key]) for key, value in env.state_dict().items())


def test_shapes_are_where_the_robots_are() -> None:
    env = marine("v3", num_envs=2)
    play(env, 5)
    shown = viewable(env)
    assert isinstance(shown, Spatial)
    outline, *bodies = shown.shapes(1)
    assert (outline.kind, outline.size[0]) == ("outline", env.craft.side)
    robots = [body for body in bodies if body.kind == "cuboid"]
    exists = env.state.exists[:, 1]
    assert len(robots) == int(exists.sum())
    motion = env.state.motion[:, exists, 1].double()
    np.testing.assert_allclose([robot.center[:2] for robot in robots], motion[:2].t())
    turns = [2 * np.arctan2(robot.quaternion[3], robot.quaternion[0]) for robot in robots]
    np.testing.assert_allclose(np.exp(1j * np.array(turns)), np.exp(1j * motion[2].numpy()), atol=1e-6)
    discs = [body for body in bodies if body.kind == "cylinder"]
    there = env.scene.obstacle[0, :, 1] < 1e4
    assert len(discs) == len(robots) + int(there.sum())


SIZE = 320, 240


def world(setting: str = "v2"):  # type: ignore[no-untyped-def]
    env = marine(setting, num_envs=2)
    play(env, 2)
    shown = snapshot(env, 1)
    return shown, shown.place[None], np.ones(len(shown.place), bool)


# Colours of actions that brake, and of those that go faster.
RED, GREEN = (208, 52, 44), (29, 138, 74)


def count(picture: np.ndarray, color: tuple[int, int, int]) -> int:
    """Return the pixels of a colour."""
    return int((np.abs(picture.astype(int) - color).max(2) < 12).sum())


# Seven tenths of the width.
MAP = np.s_[:, :224]


def test_a_table_of_actions_by_hand() -> None:
    # v2: 3·i + j, acceleration i and turn j of −, 0, +; positive turns are to the left.
    table, place = lay_out(np.arange(9.0), 6, "v2")
    # Faster is above, left comes first.
    assert table.tolist() == [[8, 7, 6], [5, 4, 3], [2, 1, 0]]
    assert (place, table[place]) == ((0, 2), 6)
    # v3: 5·i + j, thrusters left and right of the levels 0, −½, −1, ½, 1.
    table, place = lay_out(np.arange(25.0), 5 * 4 + 2, "v3")
    # The left one full ahead, the right one from ahead to astern.
    assert table[0].tolist() == [24, 23, 20, 21, 22]
    assert (place, table[place]) == ((0, 4), 22)


@pytest.mark.parametrize(("push", "shown"), [(0, (True, False)), (1, (False, False)), (2, (False, True))])
def test_arrows_are_coloured_by_acceleration(push: int, shown: tuple[bool, bool]) -> None:
    there, trail, active = world()
    choice = Choice(np.full(len(active), 3 * push + 1), active, np.ones(len(active)))
    picture = draw_actions(there, trail, choice, *SIZE)[MAP]
    assert (count(picture, RED) > 20, count(picture, GREEN) > 20) == shown


def test_an_arrow_bends_to_the_side_of_the_turn() -> None:
    there, trail, active = world()
    active[1:] = False
    before = draw_actions(there, trail, Choice(np.full(len(active), 7), active & False, np.ones(len(active))), *SIZE)
    sides = []
    # To the right, and to the left.
    for turn in (0, 2):
        choice = Choice(np.full(len(active), 6 + turn), active, np.full(len(active), 2.0))
        rows, columns = np.nonzero((draw_actions(there, trail, choice, *SIZE) != before).any(2)[MAP])
        east, north = columns.mean() - 112, 120 - rows.mean()
        x, y = there.place[0] - there.side / 2
        scale = 224 / (there.side + 3)
        off = np.array([east / scale - x, north / scale - y])
        ahead = np.array([np.cos(there.heading[0]), np.sin(there.heading[0])])
        # Positive to the left.
        sides.append(ahead[0] * off[1] - ahead[1] * off[0])
        assert off @ ahead > 0
    assert sides[0] < 0 < sides[1]


def test_thrusters_ahead_and_astern() -> None:
    there, trail, active = world("v3")
    for level, shown in ((-1.0, (True, False)), (0.0, (False, False)), (1.0, (False, True))):
        commands = np.full((len(active), 2), level)
        picture = draw_actions(there, trail, Choice(commands, active, np.zeros(len(active))), *SIZE)[MAP]
        assert (count(picture, RED) > 20, count(picture, GREEN) > 20) == shown


def test_who_takes_no_part_has_nothing_laid_over() -> None:
    there, trail, active = world()
    nobody = Choice(np.zeros(len(active), int), active & False, np.ones(len(active)))
    plain = draw(there, trail, width=224, height=224)
    actions = draw_actions(there, trail, nobody, *SIZE)
    ring = draw_range(there, trail, active & False, np.ones(len(active)), *SIZE)
    values = draw_values(there, trail, nobody, np.zeros((len(active), 9)), *SIZE)
    for picture in (actions, ring, values):
        assert np.array_equal(picture[8:232, :224], plain)


def test_the_ring_of_clearance_touches_what_is_nearest() -> None:
    there, trail, active = world()
    active[1:] = False
    far = draw_range(there, trail, active, np.full(len(active), 15.0), *SIZE)[MAP]
    near = draw_range(there, trail, active, np.full(len(active), 5.0), *SIZE)[MAP]
    assert count(far, RED) == 0, "nothing is detected"
    rows, columns = np.nonzero((near != far).any(2))
    scale = 224 / (there.side + 3)
    (x, y), size = (there.place[0] - there.side / 2) * (1, -1) * scale + (112, 120), (5.0 + 0.8) * scale
    assert np.abs(np.hypot(columns - x, rows - y) - size).max() < 3


@pytest.mark.parametrize("setting", ["v2", "v2, one robot", "v3", "v3, discrete"])
def test_every_overlay_of_every_kind(setting: str) -> None:
    env = marine(setting, num_envs=2)
    play(env, 3)
    view, before = ViewableMarine(env), env.state_dict()
    assert isinstance(view, Overlaid)
    assert ("q" in view.overlays) == bool(env.num_actions)
    action = env.full_action_spec[env.action_key].rand()
    values = torch.zeros(env.num_robots, env.num_actions) if env.num_actions else None
    for name, size in itertools.product(view.overlays, [(16, 16), SIZE, (200, 300)]):
        picture = view.overlay(name, 1, *size, Decision(action[0], values))
        assert (picture.shape, picture.dtype) == ((size[1], size[0], 3), np.uint8)
    assert all(torch.equal(value, env.state_dict()[key]) for key, value in before.items())


def test_trails_of_worlds_that_nobody_asks_for_any_more_are_forgotten() -> None:
    env = marine("v2, no obstacles", num_envs=66)
    env.reset()
    view = ViewableMarine(env)
    for i in range(66):
        view.pictures([i], 16, 16)
    assert list(view.trails) == list(range(2, 66))
