"""Evaluation of navigators: worlds, tables and files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.table import Table

from tests.evaluation.marine.test_episodes import results
from tests.training.crossing_worlds import IDLE, always, homing, marine_env
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.envs.marine.levels import FINAL_TEST
from torchrl_gpu.envs.marine.types import PLACE
from torchrl_gpu.evaluation import batch_size as side_by_side
from torchrl_gpu.evaluation.batch_size import episode_bytes
from torchrl_gpu.evaluation.episodes import score_names
from torchrl_gpu.evaluation.marine.episodes import NavigationResults
from torchrl_gpu.evaluation.marine.published import V2_TEST, V3_TEST, published_for
from torchrl_gpu.evaluation.marine.suite import COLUMNS, NavigationSuite, navigation_table

ROWS = [[0, 1, 0, 0, 20], [0, 3, 2, 2, 20]]


def small_suite(worlds_per_level: int = 3, pictures: bool = False, **changes: Any) -> NavigationSuite:
    """Two rows of a curriculum.

    Open water for one robot, then three robots with cores and obstacles.
    """
    arguments = {"curriculum": ROWS, "seed": 5, "max_steps": 40} | changes
    return NavigationSuite.of_rows(marine_env(2), worlds_per_level, pictures, **arguments)


def paper_suite(version: str, worlds_per_level: int = 1) -> NavigationSuite:
    """The published test of a version, with fewer worlds."""
    test = {"v2": V2_TEST, "v3": V3_TEST}[version]
    env = MarineNavEnv(1, version=version, device="cpu", seed=0, pool=1)
    changes = {"max_steps": test.max_steps, "end_on_collision": test.end_on_collision}
    return NavigationSuite.of_rows(env, worlds_per_level, False, curriculum=test.levels, seed=3, **changes)


# -- worlds --


def test_every_row_has_its_worlds() -> None:
    suite = small_suite()
    played = suite.play(always(IDLE))
    assert played.level.tolist() == [0, 0, 0, 1, 1, 1]
    assert played.exists.sum(1).tolist() == [1, 1, 1, 3, 3, 3]
    assert suite.num_episodes == 6
    patterns = score_names(suite.env) or ()
    for name in played.scores():
        assert any(fnmatch(name, each) for each in patterns), name


def starts(suite: NavigationSuite) -> torch.Tensor:
    start = suite.play(always(IDLE)).start
    assert start is not None
    return start


def test_the_same_worlds_every_time_and_no_world_twice() -> None:
    first = starts(small_suite())
    assert torch.equal(first, starts(small_suite()))
    assert not torch.equal(first, starts(small_suite(seed=6)))
    assert len({tuple(world.flatten().tolist()) for world in first}) == 6


def test_fewer_worlds_are_the_first_ones() -> None:
    assert torch.equal(starts(small_suite(1)), starts(small_suite(3))[[0, 3]])


def test_the_last_play_is_kept_with_a_world_of_every_row() -> None:
    suite = small_suite()
    assert suite.last is None
    played = suite.play(always(IDLE))
    assert suite.last is played
    assert played.trajectories is not None
    assert played.trajectories.index == (0, 3)


# -- table --


def lines_of(shown: Table) -> dict[tuple[str, str], dict[str, str]]:
    columns = [list(column.cells) for column in shown.columns]
    lines, level = {}, ""
    for first, policy, *figures in zip(*columns, strict=True):
        level = str(first) or level
        lines[level, str(policy)] = dict(zip(COLUMNS[2:], map(str, figures), strict=True))
    return lines


def shown_for(suite: NavigationSuite, played: Mapping[str, NavigationResults]) -> Table:
    return navigation_table(suite.env.levels, played, published_for(suite.env), "worlds")


def test_the_figures_of_each_row() -> None:
    suite = small_suite(worlds_per_level=4, max_steps=120)
    played = suite.play(homing(suite.env))
    lines = lines_of(shown_for(suite, {"homing": played}))
    assert list(lines) == [("1/0/0", "homing"), ("3/2/2", "homing"), ("all", "homing")]
    # Nothing is in the way there.
    alone = lines["1/0/0", "homing"]
    # √(5 · 1 / 6³).
    assert (alone["success"], alone["arrived"]) == ("100% ± 15%", "100% ± 15%")
    assert alone["time s"] == f"{played.steps[:4, 0].double().mean() / 2:.1f}"
    assert alone["energy"] == f"{played.energy[:4, 0].mean():.1f}"


def test_the_table_by_hand() -> None:
    lines = lines_of(navigation_table(FINAL_TEST, {"someone": results()}, None, "3 worlds"))
    assert list(lines) == [("3/4/4", "someone"), ("5/6/6", "someone"), ("all", "someone")]
    # √(0.5 · 0.5 / 2) = 35%, √(0.75 · 0.25 / 2) = 31%; (10 + 20 + 4) / 3; (50 + 40 + 80 − 50) / 4
    first = dict(zip(COLUMNS[2:], ("2", "50% ± 35%", "75% ± 31%", "20.0", "11.3", "30.0"), strict=True))
    assert lines["3/4/4", "someone"] == first
    # One world: √(2/3 · 1/3 / 3).
    assert lines["5/6/6", "someone"]["success"] == "100% ± 27%"


def test_nobody_arrived() -> None:
    suite = small_suite()
    line = lines_of(shown_for(suite, {"idle": suite.play(always(IDLE))}))["all", "idle"]
    assert (line["success"], line["time s"], line["energy"]) == ("0% ± 12%", "–", "–")


def quick(suite: NavigationSuite) -> NavigationResults:
    short = NavigationSuite(suite.env.like(1, max_steps=1), False)
    return short.play(homing(short.env))


def test_published_figures_of_v2_stand_beside() -> None:
    suite = paper_suite("v2")
    shown = shown_for(suite, {"IQN (untrained)": quick(suite)})
    lines = lines_of(shown)
    assert lines["5/6/6", "IQN, released"] == {
        "worlds": "100",
        # √(0.7 · 0.3 / 100).
        "success": "70% ± 5%",
        # √(0.908 · 0.092 / 100).
        "arrived": "90.8% ± 2.9%",
        "time s": "28.2",
        "energy": "82.7",
        "discounted return": "–",
    }
    assert lines["7/8/8", "adaptive IQN, released"]["success"] == "72% ± 4%"
    assert lines["3/4/4", "APF, released"]["time s"] == "43.4"
    assert ("4/5/5", "APF, released") not in lines
    of_a_row = [policy for level, policy in lines if level == "4/5/5"]
    assert of_a_row == ["IQN (untrained)", "IQN, released", "adaptive IQN, released", "DQN, released"]
    assert "released weights, measured again; Lin et al. ICRA 2024 / RA-L 2025" in str(shown.caption)


def test_published_figures_of_v3_stand_beside() -> None:
    suite = paper_suite("v3")
    lines = lines_of(shown_for(suite, {"ACIQN (untrained)": quick(suite)}))
    assert lines["all", "AC-IQN, released"] == {
        "worlds": "60",
        # √(0.783 · 0.217 / 60).
        "success": "78% ± 5%",
        "arrived": "–",
        "time s": "20.1",
        "energy": "30,961.7",
        "discounted return": "33.1",
    }
    assert lines["5/0/3", "AC-IQN, released"]["worlds"] == "10"
    # √(0.3 · 0.7 / 10).
    assert lines["5/0/3", "AC-IQN, released"]["success"] == "30% ± 14%"
    assert lines["all", "SAC (mean), released"]["time s"] == "–"
    # Its own kind comes first.
    assert [policy for level, policy in lines if level == "5/0/3"][1] == "AC-IQN, released"


def test_published_figures_only_where_the_test_is_the_same() -> None:
    suite = paper_suite("v2")
    assert published_for(suite.env) is V2_TEST
    assert published_for(paper_suite("v3").env) is V3_TEST
    different: list[dict[str, Any]] = [{"max_steps": 361}, {"end_on_collision": True}, {"curriculum": "evaluation"}]
    for changes in different:
        assert published_for(suite.env.like(1, **changes)) is None
    assert shown_for(small_suite(), {"idle": small_suite().play(always(IDLE))}).caption is None


# -- what is written --


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[NavigationSuite, Path, dict[str, float]]:
    folder = tmp_path_factory.mktemp("suite") / "run"
    suite = small_suite(max_steps=70, pictures=True)
    return suite, folder, suite.compare(homing(suite.env), folder, "homing", {"idle": always(IDLE)})


def test_evaluation_json(compared: tuple[NavigationSuite, Path, dict[str, float]]) -> None:
    suite, folder, scores = compared
    report = json.loads((folder / "evaluation.json").read_text())
    assert report["worlds"]["rows"]["1"] == dict(from_step=0, robots=3, cores=2, obstacles=2, min_distance=20.0)
    assert (report["worlds"]["seed"], report["worlds"]["num_worlds"], report["published"]) == (5, 6, None)
    policies = {policy["policy"]: policy for policy in report["policies"]}
    assert list(policies) == ["homing", "idle"]
    assert policies["homing"]["scores"] == pytest.approx(scores)
    assert policies["homing"]["scores"] == pytest.approx(suite.play(homing(suite.env)).scores())
    assert policies["homing"]["rows"]["0"]["success"] == 1
    assert policies["idle"]["rows"]["0"]["time"] is None
    assert policies["idle"]["decision_ms"] > 0


def test_published_figures_are_written_with_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = paper_suite("v2")
    monkeypatch.setattr(suite, "play_all", lambda policies: {name: quick(suite) for name in policies})
    suite.compare(always(IDLE), tmp_path, "IQN", {})
    published = json.loads((tmp_path / "evaluation.json").read_text())["published"]
    assert published["source"] == "released weights, measured again; Lin et al. ICRA 2024 / RA-L 2025"
    assert published["rows"]["IQN"][4]["success"] == 0.53


def test_pictures(compared: tuple[NavigationSuite, Path, dict[str, float]]) -> None:
    _, folder, _ = compared
    with Image.open(folder / "crossing.png") as picture, Image.open(folder / "crossing.gif") as film:
        assert min(picture.size) > 100
        assert len(np.unique(np.asarray(picture).reshape(-1, 3), axis=0)) > 100
        assert film.n_frames > 10
    assert not list(folder.glob("*new*"))


def test_plans(tmp_path: Path) -> None:
    suite = small_suite(max_steps=70)
    returned = suite.plan(homing(suite.env), tmp_path)
    plans = json.loads((tmp_path / "crossings.json").read_text())
    assert plans == returned
    assert [plan["world"] for plan in plans] == [0, 1, 2, 3, 4, 5]
    assert [plan["level"] for plan in plans] == [0, 0, 0, 1, 1, 1]
    assert [len(plan["robots"]) for plan in plans] == [1, 1, 1, 3, 3, 3]
    played = suite.play(homing(suite.env))
    whole = suite.like(6)
    suite.begin(whole, 0)
    whole.set_seed(whole.seed)
    whole.reset()
    begin, goals = whole.state.motion[PLACE].permute(2, 1, 0), whole.scene.goal.permute(2, 1, 0)
    for plan in plans:
        for i, robot in enumerate(plan["robots"]):
            assert robot["start_m"] == pytest.approx(begin[plan["world"], i].tolist(), abs=1e-3)
            assert robot["goal_m"] == pytest.approx(goals[plan["world"], i].tolist(), abs=1e-3)
            assert robot["time_s"] == played.steps[plan["world"], i] / 2
            assert robot["arrived"] == played.arrived[plan["world"], i]


# -- batches --


def test_the_same_worlds_and_pictures_whatever_the_batch() -> None:
    """Batches begin in the middle of a row, and hold worlds of both rows.

    The last one has rows to spare.
    """
    whole = NavigationSuite(small_suite(max_steps=30, pictures=True).env, batch_size=6)
    parts = NavigationSuite(small_suite(max_steps=30, pictures=True).env, batch_size=4)
    expected = whole.play(homing(whole.env))
    found = parts.play(homing(parts.env))
    assert (whole.side_by_side, parts.side_by_side) == (6, 4)
    assert found.scores() == expected.scores()
    assert whole.plans(expected) == parts.plans(found)
    for one, other in zip(vars(expected).values(), vars(found).values(), strict=True):
        assert not isinstance(one, torch.Tensor) or torch.equal(one, other)
    assert expected.trajectories is not None
    assert found.trajectories is not None
    assert found.trajectories.index == expected.trajectories.index == (0, 3, 4, 5)
    assert torch.equal(whole.pictures(2, 48), parts.pictures(2, 48))
    for which in range(4):
        assert torch.equal(expected.trajectories.film(which, 32), found.trajectories.film(which, 32))


def test_as_many_side_by_side_as_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = small_suite(max_steps=2)
    each = episode_bytes(suite.env, always(IDLE))
    # The state alone takes more than this.
    assert each > sum(value[..., :1].nbytes for value in vars(suite.env.state).values())
    monkeypatch.setattr(side_by_side, "free_bytes", lambda device: 2 * 2 * each)
    suite.play(always(IDLE))
    assert suite.side_by_side == 2


def test_worlds_to_watch_begin_with_the_hardest_row() -> None:
    env = small_suite().play_in(3)
    env.reset()
    assert env.state.level.tolist() == [1, 0, 1]
    assert env.state.exists.sum(0).tolist() == [3, 1, 3]


def test_worlds_in_any_order_are_refused() -> None:
    with pytest.raises(ValueError, match="NavigationSuite: in_order"):
        NavigationSuite(marine_env(1, in_order=False))
