"""Latencies, verdicts side by side, and the tables of every set and setting."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.policies.packing.test_irregular_baselines import solids_env
from tests.training import tiny_navigation
from tests.training.tiny import trainer
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.evaluation.episodes import suite_for
from torchrl_gpu.evaluation.packing.irregular import Agreement, drop
from torchrl_gpu.evaluation.packing.suite import PackingSuite
from torchrl_gpu.evaluation.suite import TableOptions
from torchrl_gpu.policies.packing import DeepestBottomLeft, RandomLegal, VolumeSorted
from torchrl_gpu.policies.packing.heuristics import (
    BOTH,
    DEEPEST,
    LESS_WASTE,
    MANAGER,
    RANDOM,
    RULE,
    VALUES,
    WORKER,
)
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.training import HierarchicalPacking


def policies(env: PackingEnv) -> dict[str, Policy]:
    return {"deepest": VolumeSorted(env, DeepestBottomLeft(env), by="box"), "random": RandomLegal(env)}


def judged(num_envs: int) -> PackingEnv:
    return solids_env().like(num_envs, stability_judge="com")


def test_cases_are_packed_alone_by_policies_in_turns() -> None:
    suite, said = PackingSuite(judged(2), False, 3), []
    suite.announce = said.append
    found = suite.pack_alone(policies(suite.env), 3)
    assert set(found) == {"deepest", "random"}
    for each in found.values():
        assert len(each) == 3
        assert all(bin_.seconds > 0 for bin_ in each)
    assert said[:2] == ["deepest, timed alone", "random, timed alone"]
    assert len(said) == 2 * (1 + 3)
    assert suite.pack_alone(policies(suite.env), 0) == {"deepest": [], "random": []}


def test_agreement_by_hand() -> None:
    agreement = Agreement()
    com = torch.tensor([True, True, True, False, False])
    physics = torch.tensor([True, True, False, True, False])
    agreement.count(com, physics)
    agreement.count(com[:1], physics[:1])
    assert agreement == Agreement(both_hold=3, only_com_holds=1, only_physics_holds=1, none_holds=1)
    assert (agreement.data()["placements"], agreement.data()["share"]) == (6, pytest.approx(4 / 6))
    assert Agreement().data()["share"] is None


def test_physics_of_the_first_cases() -> None:
    pytest.importorskip("mujoco")
    suite = PackingSuite(judged(1), False, 4, 2)
    results = suite.play(RandomLegal(suite.env))
    shares, counted = drop(suite.env, results, 3)
    assert len(shares) == 3
    placed, stability = results.num_packed[:3], results.stability
    assert stability is not None
    assert counted.data()["placements"] == int(placed.sum())
    assert counted.both_hold + counted.only_com_holds == pytest.approx((stability[:3] * placed).sum().item())
    assert counted.both_hold + counted.only_physics_holds == pytest.approx((shares * placed).sum().item())


def test_steps_that_pass_an_item_over_make_no_placement() -> None:
    pytest.importorskip("mujoco")
    env = judged(1).like(1, visible_items=1, skip_unplaceable=True, num_items=12, stability_judge="com")
    results = PackingSuite(env, False, 1).play(RandomLegal(env))
    stable = results.stable
    assert stable is not None
    # As if the first item had been skipped.
    late = torch.cat((torch.full_like(stable[:, :1], -1), stable), 1)
    verdicts = [drop(env, dataclasses.replace(results, stable=each), 1)[1] for each in (stable, late)]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0].data()["placements"] == results.num_packed.sum()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> HierarchicalPacking:
    """A packer whose networks differ from the rules, as if they had been trained."""
    made = tiny_navigation.hierarchical()
    with torch.no_grad():
        torch.manual_seed(0)
        for weights in made.parameters():
            weights.add_(torch.randn_like(weights), alpha=0.1)
    made.trainer = trainer(tmp_path_factory.mktemp("packer"))
    made.frames = 1
    return made


def tables_of(run: HierarchicalPacking, seed: int = 5, batch_size: int = 2, **options: Any) -> list[dict[str, Any]]:
    suite = suite_for(run.env, 3, seed=seed, batch_size=batch_size)
    assert isinstance(suite, PackingSuite)
    return list(suite.tables(run, TableOptions(**{"sets": ["easy"], "timed": 0} | options)))


def rows_of(table: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    rows = {}
    for row in table["methods"]:
        columns = {name: column["cases"] for name, column in row["columns"].items()}
        columns.pop("objects/s")
        rows[row["method"]] = columns
    return rows


def test_the_same_seed_is_the_same_table(run: HierarchicalPacking) -> None:
    first = rows_of(*tables_of(run))
    again = rows_of(*tables_of(run))
    assert list(first) == [RANDOM, DEEPEST, RULE, LESS_WASTE, VALUES, WORKER, MANAGER, BOTH]
    assert first == again
    assert first[RULE] != rows_of(*tables_of(run, seed=6, methods=["hm"]))[RULE]
    batched = rows_of(*tables_of(run, batch_size=3, methods=["hm", "dbl"]))
    assert batched == {name: first[name] for name in (DEEPEST, RULE)}


def test_no_choice(run: HierarchicalPacking, capsys: pytest.CaptureFixture[str]) -> None:
    many = run.env.like(1, num_items=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_made_env", [many])
        none, every = tables_of(run, visible=[0, 20])
    assert list(rows_of(none)) == [RANDOM, DEEPEST, RULE, VALUES, WORKER]
    assert list(rows_of(every)) == [RANDOM, DEEPEST, RULE, LESS_WASTE, VALUES, WORKER, MANAGER, BOTH]
    assert [table["setting"]["K"] for table in (none, every)] == [0, 20]
    shown = capsys.readouterr().out
    assert shown.count("K = 0: one object is shown, in box order") == 1
    assert "easy: K = 0 of 20 objects" in shown
    # These take the largest item that fits: one that is skipped would never fit again.
    for method in (DEEPEST, RULE, WORKER):
        assert rows_of(none)[method] == rows_of(every)[method] | {"S com": rows_of(none)[method]["S com"]}
    assert max(rows_of(none)[RULE]["objects"]) < 20


def test_a_table_for_each_set_and_setting(run: HierarchicalPacking) -> None:
    found = tables_of(run, sets=None, steps=[90.0, 180.0], resolutions=[16, 20], methods=["hm"])
    settings = [(each["set"], each["setting"]["resolution"], each["setting"]["orientations"]) for each in found]
    of_set = [(16, "cube"), (16, 180.0), (20, "cube"), (20, 180.0)]
    assert settings == [("easy", *setting) for setting in of_set] + [("hard", *setting) for setting in of_set]
    assert all(each["methods"][0]["difference"] == {} for each in found)
    (again,) = tables_of(run, sets=["hard"], steps=[180.0], resolutions=[20], methods=["hm"])
    assert rows_of(again) == rows_of(found[-1])


def test_what_k_is_changes_nothing_of_the_objects(run: HierarchicalPacking) -> None:
    """Settings share their objects, whichever was made first."""
    few = {"methods": ["hm", "manager"]}
    alone, (_, second) = tables_of(run, visible=[2], **few), tables_of(run, visible=[3, 2], **few)
    assert rows_of(*alone) == rows_of(second)


def test_physics(run: HierarchicalPacking, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mujoco")
    (table,) = tables_of(run, physics=1, methods=["random", "hm"])
    assert [row["method"] for row in table["agreement"]] == [RANDOM, RULE]
    for row in table["agreement"]:
        columns = rows_of(table)[row["method"]]
        assert row["placements"] == columns["objects"][0]
        assert len(columns["S physics"]) == 1
    shown = capsys.readouterr().out
    assert "S physics" in shown
    assert "only com holds" in shown


def test_meshes(run: HierarchicalPacking, tmp_path: Path) -> None:
    trimesh = pytest.importorskip("trimesh")
    trimesh.creation.box((0.05, 0.08, 0.1)).export(tmp_path / "box.stl")
    (tmp_path / "broken.stl").write_text("solid nothing")
    (table,) = tables_of(run, sets=None, meshes=tmp_path, methods=["hm"])
    assert (table["set"], table["episodes"]["items"]) == ("meshes", "MeshItems")
    assert table["objects"]["path"] == str(tmp_path)
    assert min(rows_of(table)[RULE]["objects"]) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": [50.0]}, "orientation_set: the step must be positive and divide 360 degrees; got 50.0"),
        ({"visible": [0], "methods": ["manager"]}, "--methods manager"),
    ],
)
def test_settings_that_cannot_be(run: HierarchicalPacking, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tables_of(run, **options)
