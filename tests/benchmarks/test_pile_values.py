"""How values of piles are learned: bins finished as the environment would, and weights that are found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

from benchmarks import pile_values
from tests.policies.packing.packer_scenes import solids_env
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.evaluation.packing.episodes import evaluate
from torchrl_gpu.policies.packing import HierarchicalPacker, PackerNetworks
from torchrl_gpu.policies.packing.pile_values import NAMES


@pytest.mark.parametrize("items", [12, 60])  # with 60 some bins end before everything is in
def test_bins_are_finished_as_the_environment_would(items: int) -> None:
    env = solids_env(8, num_items=items, reward="utilization")
    player = pile_values.Player(env)
    found = player.finish(player.begin())
    rule = HierarchicalPacker(env, PackerNetworks(channels=(8, 4)), "box", "growth", view_cells=8)
    again = solids_env(8, num_items=items, reward="utilization")
    torch.testing.assert_close(found, evaluate(again, rule).columns()["C"].float())


def test_samples_are_of_one_pile_and_begin_with_the_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pile_values, "environment", lambda seed: solids_env(8, seed=seed))
    player, file = pile_values.Player(pile_values.environment(3)), tmp_path / "samples.pt"
    bins = player.begin()
    position, looked = player.look(bins, 4)
    sample = pile_values.sample(player, bins, position, looked, torch.tensor(2), torch.tensor(0))
    assert sample["numbers"].shape == (4, len(NAMES))  # orientations "yaw"
    growth = sample["numbers"][:, NAMES.index("growth")]
    assert growth.equal(looked.growth[2, 0])
    assert growth[0] == growth.min()
    assert sample["compactness"][0] == player.finish(bins.rows(torch.tensor([2])))[0]
    pile_values.play(3, 0.02, file)
    held = torch.load(file, weights_only=True)
    assert held["seed"] == 3
    assert held["seconds"] >= 1.2
    assert all(len(each["numbers"]) == len(each["compactness"]) for each in held["samples"])


def test_weights_that_made_the_outcomes_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    wanted, samples = torch.randn(len(NAMES)), []
    for _ in range(400):
        numbers = torch.rand(6, len(NAMES))
        ended = numbers @ wanted + torch.rand(()) + 0.05 * torch.randn(6)  # each pile has a level of its own
        samples.append({"numbers": numbers, "compactness": ended})
    torch.save({"seed": 0, "seconds": 60.0, "samples": samples}, tmp_path / "samples.pt")
    monkeypatch.setattr(pile_values, "_SHIPPED", tmp_path / "weights.json")
    monkeypatch.setattr(pile_values, "RESULTS", tmp_path / "results.json")
    pile_values.fit([tmp_path / "samples.pt"])
    held = json.loads((tmp_path / "weights.json").read_text(encoding="utf-8"))
    torch.testing.assert_close(torch.tensor(held["weights"]), wanted, rtol=0.1, atol=0.05)
    told = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert told["placements"] == 2400
    assert told["left_out"][-1]["gain"] > 0.9 * told["best"]


def test_what_is_left_out_is_not_fitted_to() -> None:
    torch.manual_seed(1)
    numbers = [torch.randn(5, len(NAMES)).double() for _ in range(200)]
    noise = [torch.randn(5).double() for _ in numbers]
    gains = pile_values.left_out([each - each.mean(0) for each in numbers], noise)
    assert abs(gains.mean()) < 4 * gains.std() / len(gains) ** 0.5


def test_the_environment_is_that_of_the_config() -> None:
    config = Path(pile_values.__file__).parents[1] / "torchrl_gpu" / "configs" / "packing_irregular.yaml"
    given = yaml.safe_load(config.read_text(encoding="utf-8"))["model"]["init_args"]["env"]["init_args"]
    items = ProceduralSolids(**given.pop("items")["init_args"])
    skipped = {"num_envs": pile_values.BINS, "reward": "utilization", "device": "cpu", "seed": 0}
    theirs, ours = PackingEnv(items=items, **{**given, **skipped}), pile_values.environment(0)
    assert ours.stored_meaning == theirs.stored_meaning
    assert ours.include == theirs.include
    torch.testing.assert_close(ours.catalogue.volume, theirs.catalogue.volume)
