"""Pictures show what is there, where it is."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tensordict import TensorDictBase

from tests.envs.marine.settings import acted, homing_action, marine
from torchrl_gpu.envs.marine.types import HEADING, PLACE
from torchrl_gpu.envs.marine.viewer import Chart, Snapshot, draw, film, render, save_gif, snapshot


def empty(version: str = "v2", **changes: np.ndarray) -> Snapshot:
    """A still sea with one robot in the middle, heading along x, and its goal to the left."""
    arrays = {
        "place": np.array([[25.0, 25.0]]),
        "heading": np.zeros(1),
        "goal": np.array([[10.0, 25.0]]),
        "exists": np.ones(1, bool),
        "arrived": np.zeros(1, bool),
        "collided": np.zeros(1, bool),
        "core": np.zeros((0, 3)),
        "obstacle": np.zeros((0, 3)),
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
    seen = changed(picture(), picture(obstacle=np.array([[40.0, 10.0, 2.0]])))
    middle = (seen.min(0) + seen.max(0)) / 2
    assert middle == pytest.approx([530 - 15 - 100, 15 + 400], abs=1)  # north is up
    assert (seen.max(0) - seen.min(0)) / 2 == pytest.approx([20, 20], abs=4)  # the filter rings a little


def test_north_is_up_in_both_versions() -> None:
    obstacle = {"obstacle": np.array([[40.0, 10.0, 2.0]])}
    for version, expected in (("v2", (415, 415)), ("v3", (115, 115))):  # v3: x is north, y is east
        seen = changed(picture(version), picture(version, **obstacle))
        assert (seen.min(0) + seen.max(0)) / 2 == pytest.approx(expected, abs=1)


@pytest.mark.parametrize(("version", "turn"), [("v2", 0.0), ("v2", 1.0), ("v3", 0.0), ("v3", 2.0)])
def test_a_bow_points_ahead(version: str, turn: float) -> None:
    robot = picture(version, heading=np.array([turn])).astype(int) - picture(version, exists=np.zeros(1, bool))
    rows, columns = np.nonzero((np.abs(robot) > 60).any(-1)[200:330, 200:330])  # not the goal
    middle, ahead = Chart(version, 50.0, 530, 530).pixels(
        np.array([[25.0, 25.0], [25.0 + math.cos(turn), 25.0 + math.sin(turn)]])
    )
    x, y = columns + 200 - middle[0], rows + 200 - middle[1]
    cos, sin = (np.array(ahead) - middle) / 10
    along, across = cos * x + sin * y, np.abs(cos * y - sin * x)
    front, back = across[along > np.quantile(along, 0.9)], across[along < np.quantile(along, 0.1)]
    assert front.mean() < 0.6 * back.mean()  # it is narrow in front


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
