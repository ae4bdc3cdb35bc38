"""Worlds keep the distances that make them valid, and follow from their seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from torchrl_gpu.envs.marine.dynamics import Unicycle
from torchrl_gpu.envs.marine.generator import Pool, Worlds, generate
from torchrl_gpu.envs.marine.levels import EVALUATION, FINAL_TEST, PAPER, Level, Sizes, choose_levels
from torchrl_gpu.envs.marine.sensors import Sight, object_mask, observation, see_v2
from torchrl_gpu.envs.marine.types import CRAFTS, DRIFT, FAR, HEADING, PLACE, QUIRKS, SPEED, VELOCITY, Scene

NONE: frozenset[str] = frozenset()
LEVELS = {"v2": PAPER["v2"], "v3": (*PAPER["v3"], Level(6_000_000, 4, 6, 6, 35.0))}
POOL = 60


def worlds(version: str, seed: int = 0, pool: int = POOL, quirks: frozenset[str] = NONE) -> Worlds:
    return generate(CRAFTS[version], LEVELS[version], pool, seed, quirks)


def there(places: Tensor) -> Tensor:
    """(P, K) bool: places that are on the map."""
    return places[..., 0] < FAR / 2


def between(a: Tensor, b: Tensor) -> Tensor:
    """Distances (P, K, L), infinite where one of the two is not there."""
    distance = torch.cdist(a, b)
    return distance.masked_fill(~(there(a)[:, :, None] & there(b)[:, None]), torch.inf)


def others(distance: Tensor) -> Tensor:
    return distance + torch.diag(torch.full((distance.shape[1],), torch.inf)).nan_to_num(0.0, posinf=torch.inf)


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_every_level_has_what_it_asks_for(version: str) -> None:
    made, rows = worlds(version), torch.tensor([level[1:4] for level in LEVELS[version]])
    counts = torch.stack([there(made.start).sum(1), there(made.core).sum(1), there(made.obstacle).sum(1)], 1)
    assert len(made) == POOL * len(rows)
    assert torch.equal(counts, rows.repeat_interleave(POOL, 0))
    assert torch.equal(counts, torch.stack([made.num_robots, made.num_cores, made.num_obstacles], 1))
    assert torch.equal(there(made.goal), there(made.start))
    assert torch.equal(made.circulation != 0, there(made.core))


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_distances_are_kept(version: str) -> None:
    made, craft = worlds(version), CRAFTS[version]
    ends = torch.cat([made.start, made.goal], 1)
    least = torch.tensor([level.min_distance for level in LEVELS[version]]).repeat_interleave(POOL)
    way = (made.goal - made.start).norm(dim=-1).masked_fill(~there(made.start), torch.inf)
    assert (way.amin(1) >= least).all()
    assert others(between(made.start, made.start)).amin() > craft.clear_radius
    assert others(between(made.goal, made.goal)).amin() > craft.clear_radius
    assert between(made.core, ends).amin() > craft.clear_radius + 0.5
    assert between(made.obstacle, ends).amin() > craft.clear_radius + 1
    assert between(made.obstacle, made.core).amin() > 1.5
    assert others(between(made.obstacle, made.obstacle)).amin() > 2
    for places, margin in ((ends, 2.0), (made.core, 0.5), (made.obstacle, 5.0)):
        inside = places[there(places)]
        assert (inside >= margin).all()
        assert (inside <= craft.side - margin).all()


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_neighbouring_cores_are_mild_to_each_other(version: str) -> None:
    made, (slow, fast) = worlds(version), CRAFTS[version].edge_speed
    edge = made.circulation.abs() / 0.5
    present = edge[there(made.core)]
    assert present.min() >= slow - 1e-9
    assert present.max() <= fast + 1e-9
    distance, strength = others(between(made.core, made.core)), made.circulation.abs()
    like = made.circulation[:, :, None] * made.circulation[:, None] > 0
    a, b = strength[:, :, None], strength[:, None]
    # At 1 m/s each.
    assert (distance >= a + b)[like].all()
    unlike = ~like & distance.isfinite()
    # At the edge of the weaker one, m/s.
    brought = torch.maximum(a, b) / (distance - 1)
    assert (brought <= 0.8 * torch.minimum(a, b) / 0.5 + 1e-9)[unlike].all()
    assert (distance > 1).all()
    assert unlike.any()


def test_headings_and_speeds_fill_their_ranges() -> None:
    made = worlds("v2", pool=200)
    heading, speed = made.heading[there(made.start)], made.speed[there(made.start)]
    assert 0 <= heading.min() < 0.1
    assert 6.2 < heading.max() < 6.2832
    assert 0 <= speed.min() < 0.05
    assert 1.95 < speed.max() < 2
    assert (made.speed[~there(made.start)] == 0).all()


def test_a_seed_decides_every_world_and_their_number_none() -> None:
    few = worlds("v2", 3, 10)
    many = worlds("v2", 3, 25)
    other = worlds("v2", 4, 10)
    for field in fields(Worlds):
        some, more = getattr(few, field.name).split(10), getattr(many, field.name).split(25)
        assert all(torch.equal(a, b[:10]) for a, b in zip(some, more, strict=True)), field.name
    assert not torch.equal(few.start, other.start)
    assert few.start.flatten(1).unique(dim=0).shape[0] == len(few)


def test_what_did_not_fit_may_be_left_out() -> None:
    crowded = (Level(0, 4, 90, 40, 45.0),)
    made = generate(CRAFTS["v2"], crowded, 5, 0, frozenset(["fewer_objects"]))
    assert (made.num_cores < 90).any()
    assert torch.equal(made.num_cores, there(made.core).sum(1))
    full = generate(CRAFTS["v2"], (Level(0, 7, 8, 10, 40.0),), 20, 0, frozenset(["fewer_objects"]))
    strict = generate(CRAFTS["v2"], (Level(0, 7, 8, 10, 40.0),), 20, 0, NONE)
    # If everything fits, nothing is drawn again.
    assert torch.equal(full.start, strict.start)


@pytest.mark.parametrize("level", [Level(0, 1, 0, 0, 66.0), Level(0, 200, 0, 0, 10.0)])
def test_a_level_without_room_is_refused(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrl_gpu.envs.marine.generator.MOST_ROUNDS", 1)
    with pytest.raises(ValueError, match=f"map of 50 m for {level.robots} robots, {level.cores} cores"):
        generate(CRAFTS["v2"], (level,), 2, 0, NONE)


def test_released_worlds_may_let_unlike_cores_lie_in_each_other() -> None:
    level = (Level(0, 1, 12, 0, 10.0),)
    made = generate(CRAFTS["v2"], level, 400, 0, frozenset(QUIRKS))
    assert others(between(made.core, made.core)).amin() < 1
    assert others(between(*[generate(CRAFTS["v2"], level, 400, 0, NONE).core] * 2)).amin() > 1


TWO = (Level(0, 2, 3, 0, 30.0), Level(1, 4, 5, 6, 35.0))
CRAFT = CRAFTS["v2"]


def look(motion: Tensor, scene: Scene, there: Tensor) -> Sight:
    return see_v2(motion, scene, there, CRAFT)


@pytest.fixture
def drawn() -> Worlds:
    return generate(CRAFT, TWO, 8, 0, frozenset())


@pytest.fixture
def make(drawn: Worlds) -> Callable[[bool], Pool]:
    like = torch.empty(0, dtype=torch.float64)
    return lambda still: Pool(drawn, Unicycle(like), look, like, still)


def test_a_world_looked_up_is_the_world_drawn(drawn: Worlds, make: Callable[[bool], Pool]) -> None:
    number = torch.tensor([3, 12, 3, 15])
    begun = make(False).begin(number)
    scene = Scene.split(begun.scene, Sizes.of(TWO))
    assert torch.equal(begun.motion[PLACE].permute(2, 1, 0), drawn.start[number])
    assert torch.equal(begun.motion[HEADING].t(), drawn.heading[number])
    assert torch.equal(begun.motion[SPEED].t(), drawn.speed[number])
    assert torch.equal(scene.goal.permute(2, 1, 0), drawn.goal[number])
    assert torch.equal(scene.core[:, :, 0].permute(2, 1, 0), drawn.core[number])
    assert torch.equal(scene.circulation[:, 0].t(), drawn.circulation[number])
    assert torch.equal(scene.obstacle.permute(2, 1, 0), drawn.obstacle[number])
    assert (scene.obstacle_radius == 1).all()
    assert begun.exists.sum(0).tolist() == [2, 4, 2, 4]


def test_what_is_seen_first_is_what_would_be_seen(make: Callable[[bool], Pool]) -> None:
    begun = make(False).begin(torch.arange(16))
    scene, there = Scene.split(begun.scene, Sizes.of(TWO)), begun.exists.double()
    sight = look(begun.motion, scene, there)
    assert torch.equal(begun.observation, observation(sight))
    assert torch.equal(begun.object_mask, object_mask(sight))
    assert torch.equal(begun.clearance, sight.clearance)
    assert begun.observation[8:].any(-1).all()
    # Robots that the first level does not have.
    assert not begun.observation[:8, 2:].any()


def test_a_start_may_leave_the_current_out(make: Callable[[bool], Pool]) -> None:
    number = torch.arange(8, 16)
    still = make(True).begin(number).motion
    moved = make(False).begin(number).motion
    assert torch.allclose(moved[VELOCITY] - still[VELOCITY], moved[DRIFT])
    assert torch.equal(still[DRIFT], moved[DRIFT])
    assert moved[DRIFT].abs().max() > 0.1


FREE = (None, None, None, None)


def test_the_rows_of_the_papers() -> None:
    for version, per_step in (("v2", (7, 8, 10)), ("v3", (5, 0, 4))):
        rows = PAPER[version]
        assert [row.from_step for row in rows] == [i * 1_000_000 for i in range(6)]
        assert [row.min_distance for row in rows] == [30, 35, 40, 40, 40, 40]
        assert rows[-1][1:4] == per_step
        assert Sizes.of(rows) == per_step
    assert [row[1:] for row in EVALUATION["v3"]] == [row[1:] for row in PAPER["v3"]]
    assert {row.min_distance for row in EVALUATION["v2"] + FINAL_TEST} == {40}
    assert [row[1:4] for row in FINAL_TEST] == [(3, 4, 4), (4, 5, 5), (5, 6, 6), (6, 7, 7), (7, 8, 8)]


def test_what_is_not_given_is_the_version_s_own() -> None:
    assert choose_levels("v2", FREE, None) == (Level(0, 5, 6, 6, 40.0),)
    assert choose_levels("v3", FREE, None) == (Level(0, 5, 0, 4, 40.0),)
    assert choose_levels("v2", (3, None, 0, 30), None) == (Level(0, 3, 6, 0, 30.0),)


def test_rows_and_words() -> None:
    assert choose_levels("v2", FREE, "paper") == PAPER["v2"]
    assert choose_levels("v3", FREE, "evaluation") == EVALUATION["v3"]
    assert choose_levels("v2", FREE, "test") == FINAL_TEST
    rows = [[0, 1, 0, 0, 10], (500, 2, 1, 3, 20.5)]
    assert choose_levels("v2", FREE, rows) == (Level(0, 1, 0, 0, 10.0), Level(500, 2, 1, 3, 20.5))


def test_there_is_room_for_one_obstacle_at_least() -> None:
    assert Sizes.of((Level(0, 3, 0, 0, 30.0),)) == (3, 0, 1)


@pytest.mark.parametrize(
    ("version", "single", "curriculum", "message"),
    [
        ("v2", (3, None, None, None), "paper", "curriculum='paper' excludes robots.*3, None, None, None"),
        ("v3", FREE, "test", "curriculum.*one of paper, evaluation, .*'test'"),
        ("v2", FREE, "papers", "curriculum.*one of paper, evaluation, test, .*'papers'"),
        ("v2", FREE, [], r"curriculum.*step 0.*\[\]"),
        ("v2", FREE, [(5, 1, 0, 0, 10)], r"curriculum.*step 0.*\[5\]"),
        ("v2", FREE, [(0, 1, 0, 0, 10), (9, 1, 0, 0, 10), (5, 1, 0, 0, 10)], r"curriculum.*sorted.*\[0, 9, 5\]"),
        ("v2", FREE, [(0, 1, 0, 10)], r"a row of curriculum.*from_step.*\(0, 1, 0, 10\)"),
        ("v2", (0, None, None, None), None, "at least one robot"),
        ("v2", (None, -1, None, None), None, "no count or distance below 0"),
        ("v2", (None, None, None, -1.0), None, "no count or distance below 0"),
    ],
)
def test_what_makes_no_sense_is_refused(version: str, single: Any, curriculum: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_levels(version, single, curriculum)
