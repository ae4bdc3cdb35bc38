"""How trained packing policies are put into the package."""

from __future__ import annotations

import copy
import math

import torch

from benchmarks import packing_policies
from torchrl_gpu.envs.packing.protocols import PROTOCOLS, make_protocol
from torchrl_gpu.policies import AgentSpace, PackingPolicy, PatchTables


def learned(*levels: int) -> PatchTables:
    """Tables of single cells, 0 at first, that learned from flat bins of these heights."""
    made = PatchTables(AgentSpace.of(make_protocol("rs", 1, device="cpu")), ["1x1", "1x2"], initial=0.0)
    for level in levels:
        flat = torch.full((1, 10, 10), level, dtype=torch.uint8)
        made.learn(flat, torch.tensor([1.0]), torch.tensor([True]), 0.5)
    return made


def test_a_mean_leaves_out_runs_that_never_saw_an_entry() -> None:
    first, second = learned(1, 2), learned(2, 3)
    single = {level: learned(1, 2).weight[level].item() for level in (1, 2)}
    other = {level: learned(2, 3).weight[level].item() for level in (2, 3)}
    mean = packing_policies.mean_of([first, second])
    assert mean is first
    assert mean.weight[1].item() == single[1] != 0.0
    assert mean.weight[2].item() == (single[2] + other[2]) / 2
    assert mean.weight[3].item() == other[3] != 0.0
    assert mean.weight[7].item() == 0.0
    turned = mean.weight[11:].view(11, 11)  # of the patch of two cells: the same either way round
    assert torch.equal(turned, turned.T)
    assert bool((mean.path[[1, 2, 3]] > 0).all()), "what either learned is saved"


def test_every_protocol_has_its_options_and_a_published_figure() -> None:
    assert set(packing_policies.OPTIONS) == set(PROTOCOLS)
    assert all("%" in packing_policies._published(name, 1) for name in PROTOCOLS)
    assert packing_policies._published("rs", 9) == "–"


def test_what_ships_counts_as_often_as_it_had_runs() -> None:
    about, tables = packing_policies.shipped("discrete125")
    assert len(tables) == about["runs"] >= 3
    policy = PackingPolicy.from_pretrained("discrete125", "cpu")
    assert int((tables[0].path > 0).sum()) > 10_000
    other = copy.deepcopy(tables[0])
    other.weight.add_(0.5)
    before = policy.tables.weight
    mean = packing_policies.mean_of([other, *tables]).weight
    learned = (tables[0].path > 0)[tables[0].plan.first_images]
    assert torch.allclose(mean[learned], before[learned] + 0.5 / (1 + len(tables)), atol=1e-6)


def test_degrees_of_knowledge_are_measured_on_the_same_sequences() -> None:
    row = packing_policies.with_knowledge("rs", cases=6, candidates=2, depth=3, beam=4)
    assert set(packing_policies.KNOWLEDGE) <= set(row)
    measured = row["measured"]
    assert list(measured) == ["nothing", "the distribution", "the boxes but not their order", "the true stream"]
    alone = measured["nothing"]
    assert alone["more"] == alone["more_error"] == 0
    for each in measured.values():
        assert math.isclose(each["more"], each["utilization"] - alone["utilization"], abs_tol=1e-6)
    assert f"{measured['the true stream']['utilization']:.2%} (" in row["the true stream"]
    assert row["settings"] == {"candidates": 2, "depth": 3, "beam": 4}
