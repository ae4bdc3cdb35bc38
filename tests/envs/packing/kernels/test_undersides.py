"""Undersides of a catalogue as bytes.

Words, spans and blocks are worked by hand, and so are the bins that they suffice for.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.envs.packing.scenes import CELL, bin_of
from torchrl_gpu.envs.packing.kernels.triton.undersides import fit_bytes, undersides
from torchrl_gpu.envs.packing.types import Catalogue

NONE = torch.inf


def catalogue_of(bottoms: list[list[list[float]]], extents: list[list[int]], unit: float | None = CELL) -> Catalogue:
    """Build one item in some orientations, with undersides in units.

    Its top is flat.
    """
    bottom = torch.tensor([bottoms]) * CELL
    top = torch.where(bottom.isfinite(), 20 * CELL, 0.0)
    return Catalogue.of_maps(top, bottom, torch.tensor([extents]), torch.ones(1), unit)


def test_words_spans_and_blocks_by_hand() -> None:
    first = [[NONE, 2.0, NONE], [1.0, 0.0, 3.0], [NONE, NONE, NONE]]
    second = [[0.0, 0.0, NONE], [NONE, NONE, NONE], [5.0, NONE, 4.0]]
    made = undersides(catalogue_of([first, second], [[2, 3], [3, 3]]), bin_of((8, 8), step=2), variants=2)
    assert made.words.shape == (1, 1, 2, 2, 2, 2)
    low, high = made.words[0, 0] & 0xFF, made.words[0, 0] >> 8
    # Phase (0, 0) holds the cells (0, 0), (0, 2), (2, 0) and (2, 2).
    assert low[0, 0].tolist() == [[0, 0], [0, 0]]
    assert high[0, 0].tolist() == [[255, 0], [250, 251]]
    assert low[1, 0].tolist() == [[254, 252], [0, 0]]
    assert low[1, 1].tolist() == [[255, 0], [0, 0]]
    # Of each row of a phase, the first cell with material and one past the last.
    spans = made.spans[0, 0]
    assert (spans[0, 0] & 0xFFFF).tolist() == [0, 0]
    assert (spans[0, 0] >> 16).tolist() == [1, 2]
    assert spans[1, 1].tolist() == [1 << 16, 0]
    assert (made.blocks[0, 0] & 0xFF).tolist() == [[255, 252], [0, 0]]
    assert (made.blocks[0, 0] >> 8).tolist() == [[255, 0], [250, 251]]


def test_orientations_are_grouped_by_extent() -> None:
    wide, long = [[0.0, 1.0], [NONE, NONE]], [[2.0, NONE], [3.0, NONE]]
    made = undersides(catalogue_of([long, wide], [[2, 1], [1, 2]]), bin_of((4, 4)), variants=2)
    assert (made.words[0, 0, 0, 0] & 0xFF).tolist() == [[255, 254], [0, 0]]
    assert (made.words[0, 0, 0, 0] >> 8).tolist() == [[253, 0], [252, 0]]


def test_they_are_made_once_and_again_where_bottoms_change() -> None:
    catalogue, bin_ = catalogue_of([[[1.0]]], [[1, 1]]), bin_of((4, 4))
    made = undersides(catalogue, bin_, variants=1)
    assert undersides(replace(catalogue, volume=catalogue.volume * 2), bin_, variants=1) is made
    assert undersides(catalogue, bin_of((4, 4), step=2), variants=1) is not made
    catalogue.bottom.mul_(2)
    assert undersides(catalogue, bin_, variants=1).words.flatten().tolist() == [253]


@pytest.mark.parametrize(("levels", "unit", "fits"), [(255, CELL, True), (256, CELL, False), (10, None, False)])
def test_bins_of_up_to_255_units_fit(levels: int, unit: float | None, fits: bool) -> None:
    catalogue = catalogue_of([[[0.0]]], [[1, 1]], unit)
    assert fit_bytes(catalogue, bin_of((4, 4), levels=levels)) == fits
