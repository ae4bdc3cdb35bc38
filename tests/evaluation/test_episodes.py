"""Episodes of an environment of no task.

By hand, whatever the batch, and what is shown and written of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from tensordict import TensorDictBase

from tests.evaluation.counting_env import CountingEnv
from torchrl_gpu.evaluation.episodes import EpisodeSuite, score_names, suite_for
from torchrl_gpu.evaluation.random_actions import RandomActions

Policy = Callable[[TensorDictBase], TensorDictBase]
# Goals of seed 3: 5, 4, 3, 2, 5, 4, 3, 2, 5.
GOALS = [2 + (3 + 7 * number) % 4 for number in range(9)]


def always(action: int) -> Policy:
    return lambda seen: seen.set("action", torch.full(seen.shape, action))


def suite_of_nine(batch_size: int | None = None, **changes: bool) -> EpisodeSuite:
    return EpisodeSuite(CountingEnv(1, seed=3, **changes), num_episodes=9, batch_size=batch_size)


def test_episodes_by_hand() -> None:
    results = suite_of_nine(4).play(always(2))
    assert results.length.tolist() == [-(-goal // 2) for goal in GOALS]
    assert results.outcomes["exact"].tolist() == [float(goal % 2 == 0) for goal in GOALS]
    assert results.returned.tolist() == [goal * -1 // 2 - 10.0 * (goal % 2) for goal in GOALS]
    assert list(results.scores()) == ["exact", "return", "length"] == list(score_names(CountingEnv(1)) or ())
    assert results.scores()["exact"] == pytest.approx(4 / 9)
    # Every row of a batch counts.
    assert results.decisions == 4 * sum(int(part.max()) for part in results.length.split(4))


@pytest.mark.parametrize("size", [1, 4, None])
def test_the_same_whatever_the_batch(size: int | None) -> None:
    whole, suite = suite_of_nine(9), suite_of_nine(size)
    for policy in (always(1), RandomActions(suite.env)):
        expected, found = whole.play(policy), suite.play(policy)
        assert found.scores() == expected.scores()
        assert torch.equal(found.returned, expected.returned)


def test_an_environment_that_plays_its_batches_itself_is_left_as_it_was() -> None:
    suite = EpisodeSuite(CountingEnv(2, seed=3, first_env=1), num_episodes=6, batch_size=2)
    for _ in range(2):
        assert suite.play(always(1)).length.tolist() == GOALS[1:7]
        assert suite.env.first_env == 1


def test_what_never_ends_counts_as_it_stands() -> None:
    suite = EpisodeSuite(CountingEnv(3, seed=3, masked=False), num_episodes=3, max_steps=7)
    results = suite.play(always(0))
    assert results.length.tolist() == [7, 7, 7]
    assert results.scores() == {"exact": 0, "return": -7, "length": 7}


@pytest.mark.parametrize("masked", [True, False])
def test_the_baseline_is_random(masked: bool) -> None:
    suite = suite_of_nine(masked=masked)
    results = suite.play(suite.baselines()["random"])
    assert len(results.length.unique()) > 2
    # What overshoots is not legal.
    assert (results.scores()["exact"] == 1) is masked


def test_table_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = suite_of_nine()
    scores = suite.compare(always(1), tmp_path, "ones")
    assert scores["exact"] == 1
    assert suite.headline == "exact"
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("9 episodes", "random", "ones", "exact", "return", "length", "1.000 ± 0.087"))
    report = json.loads((tmp_path / "evaluation.json").read_text())
    assert report["episodes"] == {"env": "CountingEnv", "seed": 3, "device": "cpu"}
    rows = {row["policy"]: row for row in report["policies"]}
    assert list(rows) == ["random", "ones"]
    assert rows["ones"]["scores"] == pytest.approx(scores)
    lengths = torch.tensor(GOALS, dtype=torch.float64)
    assert rows["ones"]["errors"]["length"] == pytest.approx((lengths.std() / 3).item())


def test_plans_hold_the_actions(tmp_path: Path) -> None:
    plans = suite_of_nine(4).plan(always(2), tmp_path)
    assert plans == json.loads((tmp_path / "plans.json").read_text())
    wanted = [{"episode": i, "exact": float(g % 2 == 0), "length": -(-g // 2)} for i, g in enumerate(GOALS)]
    assert [plan | wanted[i] for i, plan in enumerate(plans)] == plans
    assert [plan["actions"]["action"] for plan in plans] == [[2] * -(-goal // 2) for goal in GOALS]


def test_pictures_are_of_the_ends_of_the_first_episodes() -> None:
    suite = suite_of_nine(4)
    played = suite.play(always(1))
    pictures = suite.pictures(3, 64)
    assert pictures.shape == (3, 48, 64, 3)
    assert pictures[:, 0, 0, 0].tolist() == [10 * goal for goal in GOALS[:3]]
    # Drawing leaves the episodes unchanged.
    assert torch.equal(suite.play(always(1)).length, played.length)


def test_a_film_of_the_episode_in_the_middle(tmp_path: Path) -> None:
    suite = suite_of_nine(2)
    suite.compare(always(2), tmp_path, "twos", {})
    # of nine, five overshoot: the fifth by (exact, number) has the number 8, which ends with the sum 6
    with Image.open(tmp_path / "episode.png") as picture, Image.open(tmp_path / "episode.gif") as film:
        assert picture.getpixel((0, 0)) == (60, 60, 60)
        # The sums 0, 2, 4 and 6.
        assert film.n_frames == 4


def test_long_films_have_few_frames(tmp_path: Path) -> None:
    suite = EpisodeSuite(CountingEnv(1, seed=3, masked=False), num_episodes=1, max_steps=200)
    drawn: list[int] = []
    pictures = CountingEnv.pictures
    suite.play(always(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CountingEnv, "pictures", lambda *args: drawn.append(1) or pictures(*args))
        suite.draw(tmp_path)
    # After 0, 2, …, 198 and 200 steps.
    assert len(drawn) == 101


def test_an_environment_that_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(CountingEnv, "pictures")
    suite = suite_of_nine()
    suite.compare(always(1), tmp_path, "ones", {})
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation.json"]


def test_its_episodes_are_not_those_of_the_environment() -> None:
    env = CountingEnv(4, seed=3, first_env=8)
    suite = suite_for(env, 5, pictures=False, batch_size=2)
    assert isinstance(suite, EpisodeSuite)
    assert (suite.num_episodes, suite.batch_size, suite.writes_pictures) == (5, 2, False)
    assert (suite.env.seed, suite.env.first_env, env.seed) == (1_000_003, 0, 3)  # type: ignore[attr-defined]


def test_a_family_registers_its_own() -> None:
    class OtherEnv(CountingEnv):
        pass

    class OtherSuite(EpisodeSuite):
        pass

    @suite_for.register(OtherEnv)
    def _(env: OtherEnv, num_episodes: int, **arguments: object) -> OtherSuite:
        return OtherSuite(env, num_episodes=num_episodes)

    assert type(suite_for(OtherEnv(2), 3)) is OtherSuite
    assert score_names(OtherEnv(2)) is None
    assert type(suite_for(CountingEnv(2), 3)) is EpisodeSuite
