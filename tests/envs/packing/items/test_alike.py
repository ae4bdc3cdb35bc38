"""Sequences of a file with the catalogue of a source that draws the same boxes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from torchrl_gpu.envs.packing.items import BoxSequences, CutBoxes, RandomBoxes
from torchrl_gpu.envs.packing.items.alike import AlikeSequences
from torchrl_gpu.envs.packing.types import Bin

BIN = Bin((10.0, 10.0, 10.0), (10, 10))


def written(path: Path, *episodes: list[list[float]], unit: str = "cells") -> BoxSequences:
    path.write_text(json.dumps(episodes), encoding="utf-8")
    return BoxSequences(str(path), unit, in_order=True)


@pytest.mark.parametrize("unit", ["cells", "mm"])
@pytest.mark.parametrize("source", [RandomBoxes(2, 5), CutBoxes(2, 5, "stack", pool=None)])
def test_boxes_get_the_numbers_of_the_other_source(tmp_path: Path, source: RandomBoxes | CutBoxes, unit: str) -> None:
    scale = 1000 if unit == "mm" else 1  # a cell of this bin is a metre
    episodes = [[[5, 2, 3], [2, 2, 2]], [[2, 5, 3], [5, 2, 3], [5, 5, 5], [10, 10, 10]]]
    file = written(tmp_path / "some.json", *[[[scale * s for s in box] for box in e] for e in episodes], unit=unit)
    alike = AlikeSequences(file, source)
    catalogue, sequences = alike.build(BIN, "yaw", 100, 2)
    expected, _ = source.build(BIN, "yaw", 100, 2)
    assert alike.foreign(BIN, "yaw") == ""
    assert alike.drawn_as is source
    assert isinstance(alike, BoxSequences)
    assert alike.names == ["0", "1"]
    assert torch.equal(catalogue.extent, expected.extent)
    rows = sequences.items(torch.arange(2), torch.arange(3).expand(2, -1))
    sides = torch.cat([expected.extent[:, 0], expected.height[:, :1].long()], 1)
    assert rows[0, 2] == -1
    assert sides[rows[0, :2]].tolist() == episodes[0]
    assert sides[rows[1]].tolist() == episodes[1][:3]


def test_a_box_that_the_source_has_not_is_named(tmp_path: Path) -> None:
    file = written(tmp_path / "some.json", [[2, 2, 2], [6, 2, 2]])
    alike = AlikeSequences(file, RandomBoxes(2, 5))
    assert alike.foreign(BIN, "yaw") == "6 × 2 × 2 cells"
    wanted = "want no boxes but the 64 boxes of RandomBoxes; got one of 6 × 2 × 2 cells"
    with pytest.raises(ValueError, match=wanted):
        alike.build(BIN, "fixed", 100, 1)
    assert file.drawn_as is file


def test_a_box_that_is_smaller_than_its_cells_is_another_one(tmp_path: Path) -> None:
    file = written(tmp_path / "some.json", [[1990.0, 2000.0, 2000.0]], unit="mm")
    assert AlikeSequences(file, RandomBoxes(2, 5)).foreign(BIN, "yaw") == "2 × 2 × 2 cells"
