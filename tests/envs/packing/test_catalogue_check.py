"""What a catalogue is refused for, when it is made: each would have a kernel read past the end of a map."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.envs.packing.scenes import CELL, as_solids
from torchrl_gpu.envs.packing.catalogue_check import MOST_MAP_CELLS
from torchrl_gpu.envs.packing.types import Catalogue

BOXES = Catalogue.of_boxes(torch.tensor([[[2, 3, CELL], [3, 2, CELL]], [[1, 1, CELL], [1, 1, CELL]]]), torch.ones(2))
SOLIDS = as_solids(BOXES, CELL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extent": BOXES.extent.int()}, r"extent must be of dtype int64; got int32"),
        ({"extent": BOXES.extent[..., 0]}, r"extent must have shape \(2, 2, 2\); got \(2, 2\)"),
        ({"extent": BOXES.extent[:0]}, r"want at least one item in one orientation; got 0 in 2"),
        ({"extent": BOXES.extent[:1]}, r"height must have shape \(1, 2\); got \(2, 2\)"),
        ({"height": BOXES.height.double()}, r"height must be of dtype float32; got float64"),
        ({"height": BOXES.height[:, :1]}, r"height must have shape \(2, 2\); got \(2, 1\)"),
        ({"height": BOXES.height.to("meta")}, r"height must be on cpu; got meta"),
        ({"volume": BOXES.volume[:1]}, r"volume must have shape \(2,\); got \(1,\)"),
        ({"plumb": torch.zeros(2, 2, 2)}, r"plumb must be of dtype int32; got float32"),
        ({"steady": torch.ones(2, 1).bool()}, r"steady must have shape \(2, 2\); got \(2, 1\)"),
        ({"bounds": BOXES.bounds[:1]}, "want bounds and least extents of 2 orientations; got 1, 2"),
        ({"extent": BOXES.extent * 0}, r"want extents of at least one cell, from \(1, 1\) to \(2, 3\); got 0 to 0"),
        ({"extent": -BOXES.extent}, r"want extents of at least one cell, from \(1, 1\) to \(2, 3\); got -2 to -1"),
        ({"extent": BOXES.extent + 7}, r"want extents of at least one cell, from \(1, 1\) to \(2, 3\); got 8 to 9"),
        ({"top": SOLIDS.top}, "want tops and bottoms, or neither; got the tops only"),
        ({"bottom": SOLIDS.bottom}, "want tops and bottoms, or neither; got the bottoms only"),
        ({"unit": 0.0}, "want a unit in metres above 0; got 0.0"),
        ({"unit": float("nan")}, "want a unit in metres above 0; got nan"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^Catalogue: {message}$"):
        replace(BOXES, **changes)


def test_maps_must_hold_the_footprints() -> None:
    assert SOLIDS.top is not None
    assert SOLIDS.bottom is not None
    with pytest.raises(
        ValueError, match=r"^Catalogue: want maps that hold footprints of \(3, 3\) cells; got \(2, 3\)$"
    ):
        replace(SOLIDS, top=SOLIDS.top[..., :2, :], bottom=SOLIDS.bottom[..., :2, :])
    with pytest.raises(ValueError, match=r"^Catalogue: top must have shape \(2, 2, 3, 3\); got \(2, 2, 2, 3\)$"):
        replace(SOLIDS, top=SOLIDS.top[..., :2, :])
    with pytest.raises(ValueError, match=r"^Catalogue: height must be of dtype float32; got float64$"):
        Catalogue.of_maps(SOLIDS.top.double(), SOLIDS.bottom.double(), SOLIDS.extent, SOLIDS.volume)
    wide = torch.zeros(1, 1, 1, MOST_MAP_CELLS + 1)
    with pytest.raises(ValueError, match=r"^Catalogue: want maps of at most 32767 cells a side; got \(1, 32768\)$"):
        Catalogue.of_maps(wide, wide, torch.tensor([[[1, MOST_MAP_CELLS + 1]]]), torch.ones(1))


def test_what_kernels_read_lies_together_in_memory() -> None:
    strided = torch.stack([BOXES.height] * 2, -1)[..., 0]
    catalogue = replace(BOXES, height=strided, extent=BOXES.extent[:1].expand(2, -1, -1))
    assert catalogue.height.is_contiguous()
    assert catalogue.extent.is_contiguous()
    assert torch.equal(catalogue.height, BOXES.height)
