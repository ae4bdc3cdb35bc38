"""Planners that know the boxes to come, beside searches over everything in NumPy."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.policies.packing.ntuple.test_tables import environment, tables_of, values_in
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences, CutBoxes, RandomBoxes
from torchrl_gpu.envs.packing.types import STABILITY_RULES, height_rules
from torchrl_gpu.evaluation.packing import evaluate
from torchrl_gpu.policies import PatchTables
from torchrl_gpu.policies.packing.planners.beam_search import Lines, StreamSearch, VisibleSearch
from torchrl_gpu.policies.packing.planners.expectation import ExpectedPlacement, shares_among
from torchrl_gpu.policies.policy import known

SHOWN = ("z_map", "future_items")
BOXES = "the boxes but not their order"


def sequences(folder: Path, episodes: list[list[list[int]]]) -> BoxSequences:
    (folder / "boxes.json").write_text(json.dumps(episodes))
    return BoxSequences(str(folder / "boxes.json"), in_order=True)


def worthless(env: PackingEnv) -> PatchTables:
    tables = tables_of(env, "1x2")
    tables.weight.zero_()
    return tables


@pytest.fixture
def second_cube(tmp_path: Path) -> PackingEnv:
    """A bin in which the second cube's place decides what fits.

    Two columns, two cells high, two cubes, and then a box that fits only if the second cube stands beside the first (a
    plate over both) or upon it (a column). The same is visible in both bins, and either can be filled.
    """
    cube = [1, 1, 1]
    plate = [2, 1, 1]
    column = [1, 1, 2]
    items = sequences(tmp_path, [[cube, cube, plate], [cube, cube, column]])
    changes = {"bin_size": (2.0, 1.0, 2.0), "resolution": (2, 1), "orientations": "fixed", "include": SHOWN}
    return environment(items=items, **changes).like(2)


@pytest.mark.parametrize("what", ["stream", "boxes"])
def test_search_places_the_second_box_for_the_third(second_cube: PackingEnv, what: str) -> None:
    env = second_cube
    policy = StreamSearch(env, worthless(env)) if what == "stream" else by_boxes(env)
    assert evaluate(env, policy).utilization.tolist() == [1.0, 1.0]
    alone = evaluate(env, StreamSearch(env, worthless(env), depth=1)).utilization
    # Whatever it does, it does twice.
    assert sorted(alone.tolist()) == [0.5, 1.0]


def by_boxes(env: PackingEnv) -> ExpectedPlacement:
    return ExpectedPlacement(env, worthless(env), 2, knows=BOXES)


def test_more_of_what_is_left_outweighs_less(tmp_path: Path) -> None:
    # Behind the second cube come two plates and a column, in this order or another: beside, the next one fits twice in
    # three times and fills 2 of 4 cells, upon it once.
    cube = [1, 1, 1]
    plate = [2, 1, 1]
    column = [1, 1, 2]
    orders = [[plate, plate, column], [column, plate, plate], [column, column, plate]]
    items = sequences(tmp_path, [[cube, cube, *order] for order in orders])
    changes = {"bin_size": (2.0, 1.0, 2.0), "resolution": (2, 1), "orientations": "fixed", "include": SHOWN}
    env = environment(items=items, **changes).like(3)
    policy, shown = by_boxes(env), env.reset()
    shown = env.step_and_maybe_reset(policy(shown))[1]
    assert shown["box_heightmap"].flatten(1).sort().values.tolist() == [[0, 1]] * 3
    after = env.step(policy(shown))["next", "box_heightmap"].flatten(1).sort().values.tolist()
    # The order of the first two does not matter.
    assert after == [[1, 1], [1, 1], [0, 2]]


# -- searches over everything -----------------------------------------------------------------------------------------


def best_packing(sizes: list[tuple[int, int, int]], turns: bool, heights: np.ndarray, ceiling: int) -> int:
    """Return the most cells that boxes fill, one after the other.

    Until one fits nowhere, without a rule of stability.
    """
    if not sizes:
        return 0
    most = None
    p, q, h = sizes[0]
    for a, b in {(p, q), (q, p)} if turns else {(p, q)}:
        for x in range(heights.shape[0] - a + 1):
            for y in range(heights.shape[1] - b + 1):
                top = heights[x : x + a, y : y + b].max() + h
                if top > ceiling:
                    continue
                after = heights.copy()
                after[x : x + a, y : y + b] = top
                most = max(most or 0, p * q * h + best_packing(sizes[1:], turns, after, ceiling))
    return 0 if most is None else most


@pytest.mark.parametrize("orientations", ["fixed", "yaw"])
def test_a_beam_over_all_lines_packs_what_can_be_packed(orientations: str) -> None:
    changes = {"bin_size": (3.0, 3.0, 3.0), "resolution": 3, "num_items": 5, "orientations": orientations}
    env = environment(items=RandomBoxes(1, 3), include=SHOWN, **changes).like(12)
    shown = env.reset()
    comes = torch.cat([shown["item_id"], shown["future_items"]], 1)
    sides = env.item_sizes[:, 0, :3].round().int()
    # These tables know nothing of the bin.
    tables = tables_of(env)
    found = evaluate(env, StreamSearch(env, tables, depth=5, beam=4096)).utilization * 27
    wanted = []
    for row in comes:
        sizes = [tuple(sides[item].tolist()) for item in row.tolist() if item >= 0]
        assert len(sizes) == 5
        wanted.append(best_packing(sizes, orientations == "yaw", np.zeros((3, 3), int), 3))
    assert found.round().int().tolist() == wanted
    narrow = evaluate(env, StreamSearch(env, tables, depth=5, beam=1)).utilization * 27
    # The search is needed for this.
    assert int((narrow.round().int() < torch.tensor(wanted)).sum()) > 0


def test_a_beam_over_all_orders_of_the_visible_boxes_packs_what_can_be_packed() -> None:
    changes = {"bin_size": (3.0, 2.0, 3.0), "resolution": (3, 2), "num_items": 5, "visible_items": 5}
    env = environment(items=RandomBoxes(1, 2), orientations="fixed", **changes).like(10)
    sides = env.item_sizes[:, 0, :3].round().int()
    wanted = []
    for row in env.reset()["item_id"]:
        sizes = [tuple(sides[item].tolist()) for item in row.tolist()]
        orders = set(itertools.permutations(sizes))
        wanted.append(max(best_packing(list(order), False, np.zeros((3, 2), int), 3) for order in orders))
    found = evaluate(env, VisibleSearch(env, worthless(env), depth=5, beam=4096)).utilization * 18
    assert found.round().int().tolist() == wanted
    narrow = evaluate(env, VisibleSearch(env, worthless(env), depth=1, beam=1)).utilization * 18
    assert int((narrow.round().int() < torch.tensor(wanted)).sum()) > 0


def test_visible_search_of_one_box_is_the_policy_alone() -> None:
    env = environment(visible_items=3, stability="support").like(32)
    tables, shown = tables_of(env), env.reset()
    for _ in range(4):
        chosen = VisibleSearch(env, tables, depth=1, beam=7)(shown.clone())["action"]
        values = values_in(tables, shown)
        torch.testing.assert_close(values.gather(1, chosen[:, None])[:, 0], values.amax(1), rtol=0, atol=1e-5)
        shown = env.step_and_maybe_reset(shown.set("action", chosen))[1]


def test_lines_that_differ_in_what_is_left_both_go_on() -> None:
    env = environment(visible_items=2)
    policy = VisibleSearch(env, tables_of(env), depth=2)
    same = torch.zeros(1, 3, *env.bin.cells)
    left = torch.tensor([[[2, -1], [-1, 2], [3, -1]]])
    lines = Lines(same, torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.bool), torch.zeros(1, 3).long(), left)
    assert policy.distinct(lines).tolist() == [[True, False, True]]


def line_values(env: PackingEnv, tables: PatchTables, shown: Any, depth: int) -> Tensor:
    """Return the value of the best line that begins with each action.

    (N, A), of the given number of items, step by step in `env`.
    """
    state, rows = env.state_dict(), env.num_envs
    worth = torch.full((rows, env.num_actions), -torch.inf)
    values = torch.where(shown["action_mask"], values_in(tables, shown), -torch.inf)
    for action in range(env.num_actions):
        legal = shown["action_mask"][:, action]
        if not bool(legal.any()):
            continue
        env.load_state_dict(state)
        after = env.step(shown.clone().set("action", torch.full((rows,), action)))["next"]
        found = values[:, action]
        if depth > 1:
            ahead = line_values(env, tables, after, depth - 1).amax(1)
            found = after["reward"][:, 0] + torch.where(after["action_mask"].any(1), ahead, 0.0)
        # No item comes.
        found = torch.where(shown["future_items"][:, 0] >= 0, found, after["reward"][:, 0])
        worth[:, action] = torch.where(legal, found, -torch.inf)
    env.load_state_dict(state)
    return worth


@pytest.mark.parametrize(("stability", "num_items"), [("none", 50), ("support", 3)])
def test_lines_are_worth_what_they_fill_and_the_bin_behind_them(stability: str, num_items: int) -> None:
    """Two items deep, in bins that are nearly full.

    Sequences end there too, and the beam holds every line.
    """
    torch.manual_seed(0)
    changes = {"bin_size": (3.0, 3.0, 3.0), "resolution": 3, "num_items": num_items, "stability": stability}
    env = environment(items=RandomBoxes(1, 2), include=SHOWN, **changes).like(8)
    tables, shown = tables_of(env), env.reset()
    greedy, seen = 0, 0
    policy = StreamSearch(env, tables, depth=2, beam=1024)
    for turn in range(4):
        if turn < 2:
            shown = env.step_and_maybe_reset(env.rand_action(shown))[1]
            continue
        chosen = policy(shown.clone())["action"][:, None]
        worth = line_values(env, tables, shown, 2)
        here = shown["action_mask"].any(1)
        best = worth.amax(1)
        torch.testing.assert_close(worth.gather(1, chosen)[here, 0], best[here], rtol=1e-4, atol=1e-4)
        alone = values_in(tables, shown).argmax(1, keepdim=True)
        greedy += int((worth.gather(1, alone)[here, 0] < best[here] - 1e-3).sum())
        seen += int((shown["future_items"][:, 0] < 0).sum())
        shown = env.step_and_maybe_reset(env.rand_action(shown))[1]
    assert greedy > 0
    assert (seen > 0) == (num_items == 3)


def test_stream_search_of_one_item_is_the_policy_alone() -> None:
    env = environment(include=SHOWN, stability="support").like(64)
    tables, shown = tables_of(env), env.reset()
    for _ in range(5):
        chosen = StreamSearch(env, tables, depth=1, beam=7)(shown.clone())["action"]
        torch.testing.assert_close(
            values_in(tables, shown).gather(1, chosen[:, None])[:, 0],
            values_in(tables, shown).amax(1),
            rtol=0,
            atol=1e-5,
        )
        shown = env.step_and_maybe_reset(shown.set("action", chosen))[1]


@pytest.mark.parametrize("changes", [{"orientations": "yaw"}, {"orientations": "fixed"}, {"grid_step": 2}])
def test_mirror_images_count_once(changes: dict[str, Any]) -> None:
    env = environment(include=SHOWN, **changes)
    policy = StreamSearch(env, tables_of(env))
    piles = torch.randint(0, 4, (1, 5, 5), generator=torch.Generator().manual_seed(2)).float()
    images = [piles, piles.clone(), piles.flip(1), piles.flip(2), piles.flip(1, 2), piles.mT, piles.mT.flip(1)]
    levels = (torch.stack(images, 1) / env.bin.tolerance).round().flatten(2).double()
    number = (levels @ policy.numbers).amin(2)[0].unique().numel()
    assert number == {"yaw": 1, "fixed": 2}.get(changes.get("orientations", ""), 6)


@pytest.mark.parametrize("planner", ["stream", "boxes", "visible"])
def test_batches_and_repetitions_decide_nothing(planner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    visible = 3 if planner == "visible" else 1
    items = CutBoxes(1, 3, pool=None)
    env = environment(items=items, orientations="fixed", include=SHOWN, visible_items=visible).like(9)
    tables = tables_of(env)
    made = {
        "stream": lambda: StreamSearch(env, tables, 3, 5),
        "boxes": lambda: ExpectedPlacement(env, tables, knows=BOXES),
        "visible": lambda: VisibleSearch(env, tables, 3, 5),
    }
    shown, policy = env.reset(), made[planner]()
    whole = policy(shown.clone())["action"]
    assert torch.equal(made[planner]()(shown.clone())["action"], whole)
    monkeypatch.setattr("torchrl_gpu.policies.packing.planners.beam_search._MOST_VALUES", 1000)
    monkeypatch.setattr("torchrl_gpu.policies.packing.planners.expectation._MOST_VALUES", 9000)
    assert torch.equal(policy(shown.clone())["action"], whole)
    assert torch.equal(policy(shown.clone()[3:7].view(2, 2))["action"], whole[3:7].view(2, 2))


# -- what is known ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [RandomBoxes(1, 3), CutBoxes(1, 3, pool=None), CutBoxes(1, 3, pool=8)])
def test_coming_items_are_those_that_will_be_shown(items: Any) -> None:
    env = environment(items=items, include=SHOWN, num_items=7, orientations="fixed", bin_size=(5.0, 5.0, 50.0))
    shown = env.reset()
    assert shown["future_items"].shape == (4, env.longest_episode)
    came, going = torch.cat([shown["item_id"], shown["future_items"]], 1), torch.ones(4, dtype=torch.bool)
    for step in range(1, 8):
        assert torch.equal(env.observation(2)["future_items"][0], shown["future_items"][2])
        shown = env.step(shown.set("action", shown["action_mask"].int().argmax(1)))["next"]
        going &= ~shown["done"][:, 0]
        assert bool(going.any()) == (step < 7)
        assert torch.equal(shown["item_id"][going, 0], came[going, step])
        assert torch.equal(shown["future_items"][going, : 7 - step], came[going, step + 1 :])


def test_planners_say_what_they_know() -> None:
    env = environment(include=SHOWN)
    tables = tables_of(env)
    assert known(StreamSearch(env, tables)) == "the true stream"
    assert known(VisibleSearch(environment(visible_items=2), tables)) == "nothing"
    assert known(ExpectedPlacement(env, tables, knows=BOXES)) == BOXES
    assert known(ExpectedPlacement(env, tables)) == "the distribution"
    left = torch.tensor([[2, 0, 2, 2, -1], [-1, -1, -1, -1, -1]])
    assert torch.equal(shares_among(left, 3), torch.tensor([[0.25, 0, 0.75], [0, 0, 0]]))


@pytest.mark.parametrize(
    ("planner", "changes"),
    [
        *(("StreamSearch", changes) for changes in ({"visible_items": 2}, {"include": ()}, {"skip_unplaceable": True})),
        *(("ExpectedPlacement", changes) for changes in ({"visible_items": 2}, {"include": ()}, {"order": "volume"})),
    ],
)
def test_boxes_that_cannot_be_known(planner: str, changes: dict[str, Any]) -> None:
    env = environment(**{"include": SHOWN, **changes})
    with pytest.raises(ValueError, match=rf"{planner}: .*one (visible )?item"):
        StreamSearch(env, tables_of(env)) if planner == "StreamSearch" else by_boxes(env)


def test_searches_refuse_wrong_numbers_and_words() -> None:
    env = environment(include=SHOWN)
    tables = tables_of(env)
    for name in ("depth", "beam"):
        with pytest.raises(ValueError, match=rf"StreamSearch: {name} .*\b1; got 0"):
            StreamSearch(env, tables, **{name: 0})
    with pytest.raises(ValueError, match=r"VisibleSearch: visible_items .*1$"):
        VisibleSearch(env, tables)
    with pytest.raises(ValueError, match=r"VisibleSearch: depth .*\b3; got 4"):
        VisibleSearch(environment(visible_items=3), tables, depth=4)
    with pytest.raises(ValueError, match=r"ExpectedPlacement: knows .*the distribution, the boxes"):
        ExpectedPlacement(env, tables, knows="the true stream")


def planners_of(env: PackingEnv) -> list[Any]:
    """Every planner that such an environment allows."""
    tables = tables_of(env)
    torch.manual_seed(0)
    # They prefer unstable placements, too.
    tables.weight.normal_()
    if env.visible_items > 1:
        return [VisibleSearch(env, tables, beam=4)]
    expected = [ExpectedPlacement(env, tables, 3), ExpectedPlacement(env, tables, 3, futures=4, depth=2)]
    return [*expected, ExpectedPlacement(env, tables, 3, knows=BOXES), StreamSearch(env, tables, 3, 4)]


@pytest.mark.parametrize("visible_items", [1, 3])
@pytest.mark.parametrize("fallback", [None, *height_rules()])
@pytest.mark.parametrize("stability", STABILITY_RULES)
def test_every_planner_keeps_every_rule_or_refuses_it(stability: str, fallback: str | None, visible_items: int) -> None:
    changes = {"bin_size": (4.0, 4.0, 4.0), "resolution": 4, "items": RandomBoxes(1, 3), "include": SHOWN}
    changes |= {"stability": stability, "fallback": fallback, "visible_items": visible_items, "num_items": 12}
    env = environment(**changes).like(6)
    if stability == "load_bearing":
        with pytest.raises(ValueError, match="stability load_bearing") as refused:
            planners_of(env)
        assert str(refused.value).startswith("VisibleSearch" if visible_items > 1 else "ExpectedPlacement")
        return
    for planner in planners_of(env):
        shown, chosen = env.reset(), 0
        for _ in range(14):
            shown = planner(shown)
            legal = shown["action_mask"].gather(1, shown["action"][:, None])[:, 0]
            assert (legal | ~shown["action_mask"].any(1)).all()
            chosen += int(legal.sum())
            shown = env.step_and_maybe_reset(shown)[1]
        assert chosen > 30


@pytest.mark.parametrize("planner", [StreamSearch, ExpectedPlacement])
def test_a_planner_that_cannot_follow_a_rule_says_which(planner: Any) -> None:
    env = environment(items=RandomBoxes(1, 3), include=SHOWN, stability="load_bearing")
    with pytest.raises(ValueError, match=f"^{planner.__name__}: stability load_bearing"):
        planner(env, tables_of(env))
