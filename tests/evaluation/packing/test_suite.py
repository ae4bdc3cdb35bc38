"""Evaluation of packing: whole episodes against a replay by loops.

And what is written about them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from tensordict import TensorDictBase

from tests.evaluation.packing.test_episodes import packed
from tests.training.tiny import dqn, packing_env
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing import physics
from torchrl_gpu.envs.packing.items import BoxSequences, CutBoxes
from torchrl_gpu.envs.packing.physics import Settled, plan_of, settle_cases
from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.evaluation import batch_size as side_by_side
from torchrl_gpu.evaluation import suite as suite_module
from torchrl_gpu.evaluation.episodes import score_names
from torchrl_gpu.evaluation.packing.episodes import PackedBins, PackingResults, evaluate
from torchrl_gpu.evaluation.packing.suite import PackingSuite, packing_table
from torchrl_gpu.evaluation.packing.suite import _file_name as suite_file_name
from torchrl_gpu.policies.packing import DeepestBottomLeft, baselines


@pytest.mark.parametrize("judge", ["legality", "com"])
def test_names_of_scores_are_known_before(judge: str) -> None:
    env = packing_env(2, stability_judge=judge) if judge == "com" else packing_env(2)
    scores = PackingSuite(env, False).play(dqn(env).policy).scores()
    assert set(scores) <= set(score_names(env) or ())


def sequence_of(env: PackingEnv, index: int) -> list[int]:
    key = env.item_sequences.begin(env.seed, torch.tensor([index]), torch.tensor([0]))
    return env.item_sequences.items(key, torch.arange(env.num_items)[None])[0].tolist()


def replayed(env: PackingEnv, index: int) -> tuple[np.ndarray, float, int]:
    """Heightmap, utilization and number of packed items of one bin.

    Computed item by item with loops. It fails if a rule is broken.
    """
    heights = np.zeros(env.bin.cells)
    volume, count = 0.0, int(env.num_packed[index])
    for number, item in enumerate(sequence_of(env, index)[: count + 1]):
        # The first item that was not packed has no place in any orientation.
        if number == count:
            assert not fits_somewhere(env, heights, item)
            break
        row, orientation, x, y = env.placements[index, number].tolist()
        p, q, height, size = env.item_sizes[row, orientation].tolist()
        under = heights[x : x + round(p), y : y + round(q)]
        assert row == item
        assert under.shape == (round(p), round(q))
        assert env.placement_z[index, number] == under.max()
        assert under.max() + height <= env.bin_size[2]
        under[:] = under.max() + height
        volume += size
    return heights, volume / env.bin.volume, count


def fits_somewhere(env: PackingEnv, heights: np.ndarray, item: int) -> bool:
    for p, q, height, _ in env.item_sizes[item].tolist():
        for x in range(heights.shape[0] - round(p) + 1):
            for y in range(heights.shape[1] - round(q) + 1):
                if heights[x : x + round(p), y : y + round(q)].max() + height <= env.bin_size[2]:
                    return True
    return False


@pytest.mark.parametrize("policy", ["baseline", "network"])
def test_packing_against_a_replay_by_loops(policy: str) -> None:
    env = packing_env(12)
    results = evaluate(env, DeepestBottomLeft(env) if policy == "baseline" else dqn(env).policy)
    for index in range(12):
        heights, utilization, count = replayed(env, index)
        assert (heights == env.state.heightmap[index].numpy()).all()
        assert results.utilization[index].item() == pytest.approx(utilization)
        assert results.num_packed[index] == count > 0
        # C: packed volume over what lies under the highest point; P: over what lies under the heightmap
        volume = utilization * 125
        assert results.compactness[index].item() == pytest.approx(volume / (25 * heights.max()))
        assert results.pyramidality[index].item() == pytest.approx(volume / heights.sum())


def test_an_action_that_is_not_legal_ends_its_bin_for_good() -> None:
    env = packing_env(4)
    packer, step = DeepestBottomLeft(env), 0

    def careless(state: TensorDictBase) -> TensorDictBase:
        nonlocal step
        step += 1
        state = packer(state)
        if step == 2:
            state["action"] = torch.where(torch.arange(4) == 1, -1, state["action"])
        return state

    results = evaluate(env, careless)
    assert results.num_packed[1] == 1
    assert results.num_packed[[0, 2, 3]].min() > 2


def test_scores_by_hand() -> None:
    results = PackingResults(
        utilization=torch.tensor([0.5, 0.7, 0.9]),
        num_packed=torch.tensor([4.0, 4.0, 7.0]),
        compactness=torch.tensor([0.5, 0.5, 0.8]),
        pyramidality=torch.tensor([1.0, 0.8, 0.9]),
        decisions=8,
        decision_s=0.002,
    )
    score = results.score("someone")
    # standard deviations with n − 1: 0.2 and √3; over √3
    assert score.utilization == pytest.approx(0.7)
    assert score.utilization_error == pytest.approx(0.2 / 3**0.5)
    assert (score.num_packed, score.num_packed_error) == (pytest.approx(5), pytest.approx(1))
    assert (score.compactness, score.pyramidality) == (pytest.approx(0.6), pytest.approx(0.9))
    assert (score.policy, score.decision_ms, score.num_episodes) == ("someone", 0.25, 3)


def test_one_episode_has_no_error() -> None:
    one = torch.tensor([0.5])
    score = packed(one).score("x")
    assert (score.utilization_error, score.num_packed_error) == (None, None)
    shown = Console(width=120)
    with shown.capture() as table:
        shown.print(packing_table([score], "one"))
    assert "±" not in table.get()


def rows_of(shown: Any) -> dict[str, tuple[str, ...]]:
    columns = [list(column.cells) for column in shown.columns]
    return {row[0]: row[1:] for row in zip(*columns, strict=True)}


def test_the_table_is_sorted_and_says_what_it_says() -> None:
    values = {"worse": torch.tensor([0.25, 0.35]), "better": torch.tensor([0.5, 0.7])}
    scores = [packed(v, num_packed=v * 10, decisions=2, decision_s=0.003).score(name) for name, v in values.items()]
    shown = rows_of(packing_table(scores[::-1], "2 episodes"))
    assert list(shown) == ["worse", "better"]
    assert shown["better"] == ("60.0% ± 10.0%", "6.00 ± 1.00", "0.600", "0.600", "1.500")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[PackingSuite, Path, dict[str, float]]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("suite") / "run"
    suite = PackingSuite(packing_env(3))
    return suite, folder, suite.compare(dqn(suite.env).policy, folder, "DQN")


def test_evaluation_json(compared: tuple[PackingSuite, Path, dict[str, float]]) -> None:
    suite, folder, scores = compared
    report = json.loads((folder / "evaluation.json").read_text())
    assert report["episodes"]["bin_size_m"] == [5.0, 5.0, 5.0]
    assert report["episodes"]["items"] == "RandomBoxes"
    assert report["episodes"]["seed"] == 3
    rows = {row["policy"]: row for row in report["policies"]}
    assert set(rows) == {"DQN", *baselines(suite.env)}
    assert all(row["num_episodes"] == 3 and row["decision_ms"] > 0 for row in rows.values())
    assert {name: rows["DQN"][name] for name in scores} == pytest.approx(scores)
    exact = suite.play(DeepestBottomLeft(suite.env)).score("deepest bottom left")
    assert rows[exact.policy] | {"decision_ms": 0} == pytest.approx(asdict(exact) | {"decision_ms": 0})


def test_the_whole_table_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    env = packing_env(2)
    PackingSuite(env, pictures=False).compare(DeepestBottomLeft(env), tmp_path, "a policy with quite a long name")
    # Without a terminal, rich assumes 80 columns.
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert all(title in shown for title in ("policy", "utilization", "items", "C", "P", "ms"))
    assert f"Written: {tmp_path / 'evaluation.json'}\n" in shown


def test_pictures(compared: tuple[PackingSuite, Path, dict[str, float]]) -> None:
    _, folder, _ = compared
    with Image.open(folder / "packing.png") as picture, Image.open(folder / "packing.gif") as film:
        assert min(picture.size) > 100
        assert film.n_frames > 2
    assert not list(folder.glob("*new*"))


def test_a_picture_of_each_order(tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text("[[[1, 1, 1], [2, 2, 2]], [[3, 3, 3]]]")
    env = packing_env(2, items=BoxSequences(str(tmp_path / "orders.json"), in_order=True))
    suite = PackingSuite(env)
    suite.play(DeepestBottomLeft(env))
    suite.draw(tmp_path)
    expected = {"order-0.png", "order-0.gif", "order-1.png", "order-1.gif"}
    assert {path.name for path in tmp_path.glob("order-*")} == expected


def voxels_of(plan: dict[str, Any], cells: tuple[int, int, int], cell: tuple[float, float, float]) -> np.ndarray:
    """Number of items in each voxel of the bin.

    It fails if an item is not wholly inside.
    """
    filled = np.zeros(cells, dtype=int)
    for placement in plan["placements"]:
        low = np.round(np.array(placement["corner"]) / np.array(cell), 4)
        high = np.round(low + np.array(placement["size"]) / np.array(cell), 4)
        assert (low >= 0).all()
        assert (high <= cells).all()
        (x0, y0, z0), (x1, y1, z1) = low.astype(int), high.astype(int)
        filled[x0:x1, y0:y1, z0:z1] += 1
    return filled


@pytest.mark.parametrize("cell", [(1.0, 1.0, 1.0), (0.02, 0.02, 0.02), (1.0, 0.5, 1.0)])
def test_plans_can_be_packed(tmp_path: Path, cell: tuple[float, float, float]) -> None:
    sides = tuple(6 * side for side in cell)
    orientations = "yaw" if cell[0] == cell[1] else "fixed"
    items = CutBoxes(2, 3, pool=32)
    env = packing_env(8, bin_size=sides, resolution=6, items=items, orientations=orientations, stability="corners")
    returned = PackingSuite(env).plan(DeepestBottomLeft(env), tmp_path)
    plans = json.loads((tmp_path / "plans.json").read_text())
    assert plans == returned
    assert [plan["episode"] for plan in plans] == [str(i) for i in range(8)]
    for plan in plans:
        assert plan["unit"] == "cells"
        filled = voxels_of(plan, (6, 6, 6), (1.0, 1.0, 1.0))
        # No two items are in one place.
        assert filled.max() == 1
        assert plan["utilization"] == pytest.approx(filled.sum() / 216, rel=1e-4)
        assert len(plan["placements"]) > 2


def test_plans_are_named_by_their_orders(tmp_path: Path) -> None:
    item = {"length/mm": 1000, "width/mm": 2000, "height/mm": 1000, "weight/kg": 1.0}
    orders = {name: {"item_sequence": {"1": item, "2": item}} for name in ("00100406", "00100407")}
    (tmp_path / "orders.json").write_text(json.dumps(orders))
    items = BoxSequences(str(tmp_path / "orders.json"), in_order=True)
    env = packing_env(2, items=items, orientations="fixed")
    plans = PackingSuite(env).plan(DeepestBottomLeft(env), tmp_path)
    assert [plan["episode"] for plan in plans] == list(orders)
    assert [p["size"] for p in plans[0]["placements"]] == [[1000, 2000, 1000]] * 2
    assert [(p["row"], p["place"]) for p in plans[0]["placements"]] == [(0, "1"), (1, "2")]


def test_plans_have_the_rows_names_and_units_of_the_file(tmp_path: Path) -> None:
    sides = ("length/mm", "width/mm", "height/mm")
    boxes = [(395, 200, 71), (9000, 10, 10), (100, 100, 71), (395, 200, 71)]
    order = {str(n): dict(zip(sides, box, strict=True)) | {"article": f"a{n}"} for n, box in enumerate(boxes, 1)}
    (tmp_path / "orders.json").write_text(json.dumps({"up/../7": {"item_sequence": order}}))
    items = BoxSequences(str(tmp_path / "orders.json"), in_order=True, misfits="skip_boxes")
    env = PackingEnv(1, bin_size=(0.71, 0.71, 0.71), resolution=71, items=items, orientations="fixed", device="cpu")
    suite = PackingSuite(env)
    (plan,) = suite.plan(DeepestBottomLeft(env), tmp_path)
    assert (plan["episode"], plan["unit"]) == ("up/../7", "mm")
    for placement, row in zip(plan["placements"], (0, 2, 3), strict=True):
        label = {"row": row, "place": str(row + 1), "article": f"a{row + 1}", "sides": list(boxes[row])}
        assert {key: placement[key] for key in label} == label
        assert all(isinstance(side, int) for side in placement["corner"])
    assert [p["size"] for p in plan["placements"]] == [[400, 200, 80], [100, 100, 80], [400, 200, 80]]
    # The name of an order is not a path.
    assert suite_file_name("up/../7", 3) == "order-up_.._7-3"
    assert suite_file_name("00100406", 3) == "order-00100406"
    assert suite.describe()["left_out"] == {"boxes": 1, "orders": 0}


def test_rows_of_a_plan_follow_what_was_chosen_among_several_boxes(tmp_path: Path) -> None:
    boxes = [[1, 1, 1], [2, 2, 2], [1, 1, 1], [3, 1, 1], [2, 2, 2]]
    (tmp_path / "a.json").write_text(json.dumps([boxes]))
    items = BoxSequences(str(tmp_path / "a.json"), in_order=True)
    env = packing_env(1, items=items, visible_items=3, order="volume", orientations="fixed")
    (plan,) = PackingSuite(env).plan(DeepestBottomLeft(env), tmp_path)
    assert sorted(p["row"] for p in plan["placements"]) == [0, 1, 2, 3, 4]
    assert all(p["sides"] == boxes[p["row"]] == p["size"] for p in plan["placements"])


def test_a_policy_of_more_memory_gets_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = PackingSuite(packing_env(1), False, num_episodes=8)
    each = suite.env.bytes_per_env
    monkeypatch.setattr(side_by_side, "free_bytes", lambda device: 16 * each)
    needs = {"lean": 0, "wide": 3 * each, "lean again": 0}
    sizes = []
    for need in needs.values():
        monkeypatch.setattr(suite_module, "episode_bytes", lambda env, policy, need=need: each + need)
        suite.play(DeepestBottomLeft(suite.env))
        sizes.append(suite.side_by_side)
    # None is made for a policy that takes less.
    assert sizes == [8, 2, 2]


def test_a_size_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"PackingSuite: batch_size.*0"):
        PackingSuite(packing_env(1), batch_size=0)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, {"AAAI 2021, policy": 66.9, "arXiv 2208.07123, 100 sequences": 69.9}),
        ({"visible_items": 3}, {"arXiv 2208.07123, 100 sequences": 77.1}),
        ({"visible_items": 4}, {}),
        ({"stability": "none"}, {}),
        ({"skip_unplaceable": True}, {}),
    ],
    ids=["one box", "three to choose from", "nobody told", "other rules", "going on"],
)
def test_published_figures_stand_beside_the_same_rules_only(settings: dict[str, Any], wanted: dict[str, float]) -> None:
    assert PackingSuite(make_protocol("cut2", 2, device="cpu", **settings), False, 2).published() == wanted


def test_the_pallet_of_orders_shows_the_policy_that_comes_with_the_package() -> None:
    pallet = PackingSuite(make_protocol("orders", 2, device="cpu", seed=0), pictures=False)
    assert set(pallet.baselines()) - set(baselines(pallet.env)) == {"pretrained"}
    cubes = PackingSuite(make_protocol("rs", 2, device="cpu", seed=0), pictures=False)
    assert set(cubes.baselines()) == set(baselines(cubes.env))


WEIGHED = """order,length_cm,width_cm,height_cm,weight_kg
7,40,40,20,9
7,40,40,20,
7,20,40,20,2.5
8,40,40,40,3
"""


@pytest.mark.parametrize("name", ["list.csv", "orders.json"])
def test_simulations_take_the_weights_of_a_list(name: str, tmp_path: Path) -> None:
    # The second box is as dense as the others together: 14.5 kg in 112 litres.
    (tmp_path / name).write_text(WEIGHED if name == "list.csv" else json.dumps(weighed_orders()))
    items = BoxSequences(str(tmp_path / name), in_order=True)
    settings = {"bin_size": (0.4, 0.4, 2.0), "resolution": 4, "stability": "support", "walls": False, "friction": 0.9}
    env = PackingEnv(2, items=items, num_items=3, device="cpu", seed=0, **settings)
    wanted = [[9, 14.5 * 32 / 112, 2.5], [3]]
    suite = PackingSuite(env, False)
    results = suite.play(DeepestBottomLeft(env))
    for index, masses in enumerate(wanted):
        assert plan_of(PackedBins(env, results), index).masses == pytest.approx(masses)
    current = env.reset()
    for _ in range(2):
        step = env.step(current.set("action", current["action_mask"].int().argmax(1)))
        current = step["next"].exclude("reward")
        assert plan_of(env, 0).masses == pytest.approx(wanted[0][: int(env.num_packed[0])])


def test_plans_name_the_orders_that_were_drawn(tmp_path: Path) -> None:
    rows = []
    for order in range(1, 10):
        rows += [f"{order},40,40,{10 + order},{order}"] * order
    (tmp_path / "list.csv").write_text("\n".join(["order,length_cm,width_cm,height_cm,weight_kg", *rows]))
    settings = {"bin_size": (0.4, 0.4, 2.0), "resolution": 4, "num_items": 10, "device": "cpu", "first_env": 5}
    env = PackingEnv(1, items=BoxSequences(str(tmp_path / "list.csv")), seed=0, **settings)
    suite = PackingSuite(env, False, 6)
    results = suite.play(DeepestBottomLeft(env))
    plans = suite.plans(results)
    drawn = [int(plan["episode"]) for plan in plans]
    assert len(set(drawn)) > 2
    assert [round(100 * plan["placements"][0]["size"][2]) for plan in plans] != list(range(11, 17))
    for index, (order, plan) in enumerate(zip(drawn, plans, strict=True)):
        assert all(each["weight/kg"] == order for each in plan["placements"])
        masses = plan_of(PackedBins(env, results), index).masses
        assert masses == pytest.approx([order] * len(plan["placements"]))


def weighed_orders() -> dict[str, Any]:
    """The boxes of `WEIGHED` as orders in JSON."""
    orders: dict[str, Any] = {}
    for line in WEIGHED.split()[1:]:
        numbers = [float(cell or 0) for cell in line.split(",")]
        order, *sides, weight = numbers
        box = dict(zip(("length/mm", "width/mm", "height/mm"), (10 * side for side in sides), strict=True))
        boxes = orders.setdefault(str(order), {"item_sequence": []})["item_sequence"]
        boxes.append(box | ({"weight/kg": weight} if weight else {}))
    return orders


def test_simulations_take_the_friction_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    seen = []

    def spied(*args: Any, friction: float, **options: Any) -> list[Settled]:
        seen.append(friction)
        return settle_cases(*args, friction=friction, **options)

    monkeypatch.setattr(physics, "settle_cases", spied)
    env = packing_env(1, bin_size=(0.4, 0.4, 0.4), resolution=4, friction=0.25)
    suite = PackingSuite(env, False)
    suite.simulated = 1
    suite.settle({"dbl": suite.play(DeepestBottomLeft(env))})
    assert seen == [0.25]
    with pytest.raises(ValueError, match="friction must be"):
        packing_env(1, friction=-1.0)


def test_a_table_tells_what_stands(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mujoco")
    env = packing_env(3, bin_size=(0.6, 0.6, 0.6), resolution=6, stability="support", walls=False)
    suite = PackingSuite(env, False)
    suite.simulated = 2
    results = {name: suite.play(policy) for name, policy in baselines(env, ["dbl"]).items()}
    shown, report = suite.table(results, "none")
    (row,) = report["policies"]
    plans = [plan_of(PackedBins(env, results[row["policy"]]), index) for index in range(2)]
    assert not any(plan.walls for plan in plans)
    cases = settle_cases(plans, sequential=False)
    assert row["stands"] == pytest.approx(np.mean([case.share for case in cases]))
    assert (row["simulated"], row["faultless"]) == (2, sum(case.stable.all() for case in cases))
    Console(width=200).print(shown)
    printed = capsys.readouterr().out
    assert "stands" in printed
    assert f"{row['faultless']} of 2" in printed
