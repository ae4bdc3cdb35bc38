"""Protocols: fixed suites, rows and files.

Suites are what their hashes say, rows say what each policy knew, and files are played by the same rules.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from torchrl_gpu.envs.packing.protocols import PROTOCOLS
from torchrl_gpu.evaluation.packing.protocols import (
    PUBLISHED,
    SUITE_EPISODES,
    SUITE_HASHES,
    ProtocolSuite,
    protocol_table,
    sequence_hash,
    sequence_sizes,
)
from torchrl_gpu.policies.packing import DeepestBottomLeft, PlacementHeuristic, baselines
from torchrl_gpu.policies.packing.placements import Placements


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_suite_has_its_hash(name: str) -> None:
    suite = ProtocolSuite(name, device="cpu")
    assert suite.num_episodes == SUITE_EPISODES == 2000
    assert suite.sequence_hash() == SUITE_HASHES[name]


def test_a_hash_is_of_lengths_and_sizes() -> None:
    one, two = torch.tensor([[2, 3, 4]]), torch.tensor([[5, 5, 5]])
    raw = struct.pack("<4i", 1, 2, 3, 4)
    assert sequence_hash([one]) == hashlib.sha256(raw).hexdigest()
    assert len({sequence_hash(each) for each in ([one], [two], [one, two], [two, one], [torch.cat([one, two])])}) == 5


def test_what_is_played_is_what_is_hashed_however_many_side_by_side() -> None:
    suites = [ProtocolSuite("cut2", 5, device="cpu", batch_size=size) for size in (2, 5)]
    sizes = sequence_sizes(suites[0].env, 5)
    assert all(int(each.prod(1).sum()) == 1000 for each in sizes)
    for suite in suites:
        results = suite.play(DeepestBottomLeft(suite.env))
        assert results.placements is not None
        extent, height = suite.env.catalogue.extent[:, 0], suite.env.catalogue.height[:, 0].long()
        for wanted, placed, number in zip(sizes, results.placements, results.num_packed.long().tolist(), strict=True):
            item = placed[:number, 0].long()
            assert torch.cat([extent[item], height[item, None]], 1).equal(wanted[:number])


def test_the_first_sequence_is_counted_from_the_same_place() -> None:
    suite = ProtocolSuite("rs", 4, device="cpu")
    assert len({sequence_hash([each]) for each in sequence_sizes(suite.env, 4)}) == 4
    later = ProtocolSuite("rs", 2, first=2, device="cpu")
    assert sequence_hash(sequence_sizes(later.env, 2)) == sequence_hash(sequence_sizes(suite.env, 4)[2:])


class Knowing(PlacementHeuristic):
    knows = "the distribution"

    def choose(self, placements: Placements) -> torch.Tensor:
        return placements.legal.flatten(1).byte().argmax(1)


@pytest.mark.parametrize(("visible", "nothing", "more"), [(1, "nothing", ""), (3, "3 visible", "3 visible, ")])
def test_rows_say_what_was_known(visible: int, nothing: str, more: str) -> None:
    suite = ProtocolSuite("discrete125", 3, visible_items=visible, device="cpu")
    policies = {**baselines(suite.env, ["dbl"]), "expecting": Knowing(suite.env)}
    report = suite.compare_all(policies, timed=1)
    assert [row["knows"] for row in report["policies"]] == [nothing, f"{more}the distribution"]
    for row in report["policies"]:
        assert row["utilization"] == pytest.approx(np.mean(row["utilizations"]), abs=1e-5)
        assert row["utilization_error"] == pytest.approx(np.std(row["utilizations"], ddof=1) / 3**0.5, abs=1e-5)
        assert row["decision_alone_ms"] > 0
    assert report["sequences"]["sha256"] == suite.sequence_hash()
    assert [row["policy"] for row in report["published"]] == (
        [name for name, *_ in PUBLISHED.get(("discrete125", visible), ())]
    )
    assert json.dumps(report)
    shown = list(protocol_table(report).columns[1].cells)
    assert set(shown[:2]) == {nothing, f"{more}the distribution"}


def written(folder: Path) -> Path:
    """Three sequences as they are published.

    Each is a list that ends with a box as large as the bin. The first is skipped.
    """
    episodes = [[[5, 5, 5]], [[5, 5, 5]] * 8, [[2, 3, 4], [5, 5, 2]]]
    path = folder / "cut_2.pt"
    torch.save([[*episode, [10, 10, 10]] for episode in episodes], path)
    return path


def test_published_files_are_read_as_they_are(tmp_path: Path) -> None:
    suite = ProtocolSuite("cut2", sequences=written(tmp_path), first=1, device="cpu")
    assert suite.num_episodes == 2
    assert [each.tolist() for each in sequence_sizes(suite.env, 2)] == [[[5, 5, 5]] * 8, [[2, 3, 4], [5, 5, 2]]]
    results = suite.play(DeepestBottomLeft(suite.env))
    assert results.utilization.tolist() == [1.0, pytest.approx(0.074)]
    about = suite.describe()
    assert (about["file"], about["first"], about["items"], about["stability"]) == ("cut_2.pt", 1, "cut_2.pt", "corners")


def test_a_file_must_have_enough_sequences(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cut_2\.pt must have 3 sequences from number 1 on; it has 3"):
        ProtocolSuite("cut2", 3, sequences=written(tmp_path), first=1, device="cpu")
