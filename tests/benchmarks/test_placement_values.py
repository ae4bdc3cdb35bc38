"""How values of placements are learned and measured: orders packed as the environment would, and the search."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import placement_values
from torchrl_gpu.envs.packing.items import OrderBoxes
from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.evaluation.packing.episodes import evaluate
from torchrl_gpu.policies import PackingPolicy
from torchrl_gpu.policies.packing.placement_values import NAMES, LinearPlacementValues


def some_weights(seed: int) -> torch.Tensor:
    """Low, near to the corner, and a little of everything."""
    weights = 0.05 * torch.randn(len(NAMES), generator=torch.Generator().manual_seed(seed))
    weights[NAMES.index("base")] = -3.0
    return weights


def test_orders_are_packed_as_the_environment_would() -> None:
    player = placement_values.Player(5)
    weights = torch.stack([some_weights(seed) for seed in (0, 1)])
    found = player.finish(player.begin(6).rows(torch.arange(6).repeat(2)), weights.repeat_interleave(6, 0)).view(2, 6)
    env = make_protocol("orders", 6, items=OrderBoxes(seed=5), seed=5, device="cpu")
    for each, wanted in zip(found, weights, strict=True):
        policy = PackingPolicy(player.space, LinearPlacementValues(player.space, wanted.tolist()))
        torch.testing.assert_close(each, evaluate(env, policy).utilization)
    assert player.begin(2).order[0].tolist() != player.begin(2).order[0].tolist()  # new ones each time


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_search_finds_what_is_best(noise: float) -> None:
    rng = np.random.default_rng(0)
    best, scale = rng.normal(0, 1, 8), np.geomspace(0.3, 3, 8)
    population = placement_values.Population(np.zeros(8), 0.3, 12, seed=1)
    for _ in range(150):
        away = ((population.drawn() - best) * scale) ** 2
        population.learn(-away.sum(1) + noise * rng.normal(0, 1, 12))
    assert (((population.mean - best) * scale) ** 2).sum() < (1e-6 if not noise else 0.2)


def test_what_is_learned_is_written_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("WEIGHTS", tmp_path), ("RESULTS", tmp_path), ("MEMBERS", 4), ("ORDERS", 2)):
        monkeypatch.setattr(placement_values, name, value)
    for name, value in (("VALIDATION", 3), ("SUITE", 3), ("RULES", ("dbl", "macs")), ("SUITE_HASH", None)):
        monkeypatch.setattr(placement_values, name, value)
    placement_values.learn(seed=3, minutes=0.02)
    held = json.loads((tmp_path / "placement_values_training.json").read_text(encoding="utf-8"))
    assert held["rows"][0]["generations"] == 0
    assert held["rows"][-1]["generations"] > 0
    policy = PackingPolicy.from_pretrained(tmp_path / "orders.safetensors", "cpu")
    best = max(held["rows"], key=lambda row: row["utilization"])
    assert policy.tables.weight.tolist() == pytest.approx(best["weights"], abs=1e-6)
    order = {"item_sequence": {"1": {"length/mm": 400, "width/mm": 300, "height/mm": 200}}}
    (tmp_path / "mine.json").write_text(json.dumps({"a": order, "b": order}))
    placement_values.measure(2, tmp_path / "mine.json")
    sections = json.loads((tmp_path / "placement_values.json").read_text(encoding="utf-8"))["sections"]
    assert [each["title"] for each in sections] == ["suite", "mine.json"]
    for section, numbers in zip(sections, ({2, 3}, {2}), strict=True):
        assert {row["orders"] for row in section["rows"]} == numbers
        ours = next(row for row in section["rows"] if row["policy"] == "**placement values**")
        for row in section["rows"]:
            paired = np.array(ours["utilizations"][: row["orders"]]) - row["utilizations"]
            assert row["more"] == "" or float(row["more"].split()[0]) == pytest.approx(100 * paired.mean(), abs=0.051)
    assert sections[1]["rows"][0]["share"] == pytest.approx(0.4 * 0.3 * 0.2 / 1.44, rel=1e-4)
    assert "deepest bottom left" in capsys.readouterr().out
    assert "Licence" in (tmp_path / "orders.md").read_text(encoding="utf-8")


def test_the_suite_is_the_one_that_was_measured() -> None:
    env = placement_values.suite(placement_values.SUITE)
    sizes = placement_values.sequence_sizes(env, placement_values.SUITE)
    assert placement_values.sequence_hash(sizes) == placement_values.SUITE_HASH
